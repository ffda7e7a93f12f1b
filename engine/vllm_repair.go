package engine

func (vllm) Repairs() Repairs { return Repairs{Fault: vllmFault} }

// vllmFault: vLLM has no route at all for what the model is not for, and answers 404 "Not Found". To go when it says so itself.
func vllmFault(ask Ask, f Fault) Fault {
	what := map[string]string{"chat": "chat", "completions": "completions", "responses": "responses", "embeddings": "embeddings", "rerank": "reranking",
		"transcriptions": "transcriptions", "translations": "translations"}[ask.Kind]
	switch {
	case f.Status == 404 && f.Message == "Not Found" && what != "", says(f.Message, "does not support Embeddings API", "does not support Rerank"):
		return f.notServed(ask, what, "")
	case f.Status == 400 && says(f.Message, "maximum context length", "maximum model length", "max_model_len"):
		return f.invalid(codeContextLength, f.Message)
	}
	return f
}
