package engine

func (*ollama) Repairs() Repairs { return Repairs{Fault: ollamaFault} }

// ollamaFault: Ollama 0.17.4 answers some bad input with 500. To go when it answers these with 400.
func ollamaFault(ask Ask, f Fault) Fault {
	switch {
	case says(f.Message, "exceeds the context length", "exceeds maximum context length"):
		return f.invalid(codeContextLength, f.Message)
	case f.Status == 400:
		return f.invalid(f.Code, f.Message) // of the type that the status says
	case says(f.Message, "does not support"):
		return f.invalid(codeUnsupported, f.Message)
	case f.Status == 500 && says(f.Message, "invalid JSON schema in format", "no input provided", "invalid image", "failed to process image"):
		return f.invalid(codeInvalid, f.Message)
	}
	return f
}
