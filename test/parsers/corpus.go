package parsers

import "strings"

// Bodies are JSON bodies, and things that are none, on which parsers differ or might: the goldens say what each does with
// them, and fuzzers begin with them. The members that the goldens look at are model (text), n (a number), stream (a boolean).
func Bodies() [][]byte {
	list := []string{
		// Plain ones, and all there is of grammar.
		`{}`, ` { } `, `{"model":"a","n":1,"stream":true}`, "\t{\"model\" :\r\n\"a\" }\n", `[]`, `[1]`, `"x"`, `1`, `null`, `true`, ``, ` `, `{"model":"a","messages":[{"role":"user","content":"hi"}],"max_tokens":16,"stream_options":{"include_usage":true}}`,
		`{"a":[],"b":{},"c":[{}],"d":[[]],"e":""}`, `{"prompt":["a","b"],"n":2}`, `{"prompt":[[1,2],[3]],"best_of":2}`,
		// Broken ones.
		`{`, `{"`, `{"n`, `{"n"`, `{"n":`, `{"n":1`, `{"n":1,`, `{"n":1,}`, `{,}`, `{"n" 1}`, `{n:1}`, `{'n':1}`, `{"n":1]`, `{"n":[1}`, `{"n":[1,]}`, `{"n":[,1]}`, `{"n":{,}}`, `{"n"::1}`, `{"n":1 "a":2}`, `{"n":1,,"a":2}`, `{1:2}`, `{null:1}`, `{"n":}`, `{]`, `[}`,
		`{/*x*/"n":1}`, "{\"n\":1//x\n}", "#\n{}", `{"n":1;}`,
		// After the value, before it.
		`{}x`, `{}{}`, `{} []`, "{}\x00", "{}\x00{\"n\":2}", "{\"n\":1\x00}", "\x00{}", "{}\x0c", "{}\u00a0", "\u2003{}", "\ufeff{\"n\":1}", "\ufeff\ufeff{}", "\xef\xbb{}", "\xef{}", "{}\ufeff",
		// Other encodings.
		"\xff\xfe{\x00}\x00", "\xfe\xff\x00{\x00}", "{\x00\"\x00n\x00\"\x00:\x001\x00}\x00", "\x00{\x00\"\x00n\x00\"\x00:\x001\x00}", "{\x00\x00\x00}\x00\x00\x00", "\x00\x00\x00{\x00\x00\x00}", "\xff\xfe\x00\x00{\x00\x00\x00}\x00\x00\x00",
		"\xff\xfe{\x00\"\x00\x3d\xd8\"\x00:\x001\x00}\x00", "{\x00}", "\x00{", "1\x00", "\x001", "{\x00}\x00\x00", "\x00\x00\xfe\xff\x00\x00\x00{\x00\x00\x00}", "\xff\xfe{\x00}",
		// UTF-8 that is none.
		"{\"model\":\"\xff\"}", "{\"model\":\"\xc0\x80\"}", "{\"model\":\"\xed\xa0\x80\"}", "{\"model\":\"\xed\xa0\xbd\xed\xb8\x80\"}", "{\"model\":\"\xed\xb8\x80\"}", "{\"model\":\"\xf4\x90\x80\x80\"}", "{\"model\":\"\xe2\x82\"}", "{\"model\":\"\xe2\x82", "{\"\xff\":1}", "{\"model\":\"\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbf\"}", "{\"model\":\"\x7f\"}",
		"{\"model\":\"\xed\x9f\xbf\xee\x80\x80\"}", "{\"model\":\"\xe0\x80\x80\"}",
		// Names that stand twice, and in other spellings.
		`{"model":"a","model":"b"}`, `{"model":"a","mod\u0065l":"b"}`, `{"n":1,"x":2,"n":3}`, `{"Model":"b","model":"a"}`, `{"model":"a","Model":"b"}`, `{"N":3}`, `{"n":1,"N":2}`, `{"\u006e":3}`, `{"\u006E":3}`, `{"n\u0000":1}`, `{"n ":1}`, `{"":1}`, `{"MAX_TOKENS":1}`, `{"max_to\u212aens":1}`, "{\"max_to\u212aens\":1}", "{\"\u017ftream\":true}", `{"\u017Ftream":true}`,
		`{"n":{"a":1},"n":{"b":2}}`, `{"stream_options":{"include_usage":false,"include_usage":true}}`, `{"stream_options":{"Include_Usage":true}}`, `{"n":1,"n":null}`, `{"n":null,"n":1}`,
		// Strings.
		`{"model":"a\"b\\\/\b\f\n\r\t"}`, `{"model":"\u00e9\ud83d\ude00"}`, `{"model":"\uD83D\uDE00"}`, `{"model":"\ud83d"}`, `{"model":"\ude00"}`, `{"model":"\ude00\ud83d"}`, `{"model":"\ud83d\u0041"}`, `{"model":"\ud83dx"}`, `{"model":"\ud83d\ud83d\ude00"}`, `{"\ud83d":1}`, `{"\ud83d\ude00":1}`, `{"model":"\u0000"}`,
		`{"model":"\x41"}`, `{"model":"\u12"}`, `{"model":"\u12G4"}`, `{"model":"\u 041"}`, `{"model":"\u+041"}`, `{"model":"\U0041"}`, `{"model":"\'"}`, `{"model":"\`, `{"model":"\u`, `{"model":"\u0041`, "{\"model\":\"\n\"}", "{\"model\":\"\t\"}", "{\"model\":\"\x00\"}", "{\"model\":\"\x1f\"}", "{\"model\":\"\u2028\"}", `{"model":"\ud83d\`, `{"model":"\ud83d\u`, `{"model":"\ud83d\uZZZZ"}`,
		"{\"model\":\"\\ud83d\xed\xb8\x80\"}", `{"model":1}`, `{"model":true}`, `{"model":["a"]}`, `{"model":{"a":"b"}}`, `{"model":null}`, `{"model":""}`,
		// Numbers.
		`{"n":0}`, `{"n":-0}`, `{"n":-1}`, `{"n":16.0}`, `{"n":1.9}`, `{"n":-1.9}`, `{"n":0.5}`, `{"n":1e3}`, `{"n":1E+2}`, `{"n":10e-1}`, `{"n":0e0}`, `{"n":-0.0}`, `{"n":1e0}`, `{"n":2147483647}`, `{"n":2147483648}`, `{"n":4294967295}`, `{"n":4294967297}`, `{"n":-2147483649}`, `{"n":9007199254740993}`, `{"n":9223372036854775807}`, `{"n":9223372036854775808}`,
		`{"n":18446744073709551615}`, `{"n":18446744073709551616}`, `{"n":-9223372036854775808}`, `{"n":-9223372036854775809}`, `{"n":1e20}`, `{"n":1e308}`, `{"n":1e309}`, `{"n":-1e400}`, `{"n":1e-400}`, `{"n":` + strings.Repeat("1", 400) + `}`, `{"n":` + strings.Repeat("9", 4300) + `}`, `{"n":` + strings.Repeat("9", 4301) + `}`, `{"n":-` + strings.Repeat("9", 4300) + `}`,
		`{"n":9.2233720368547758e18}`, `{"n":00}`, `{"n":01}`, `{"n":-01}`, `{"n":+1}`, `{"n":1.}`, `{"n":.5}`, `{"n":-}`, `{"n":-.5}`, `{"n":1e}`, `{"n":1e+}`, `{"n":1.e5}`, `{"n":1.5e}`, `{"n":0x10}`, `{"n":1_000}`, `{"n":1a}`, `{"n":1 2}`, "{\"n\":\u0661}", `{"n":NaN}`, `{"n":Infinity}`, `{"n":-Infinity}`, `{"n":-NaN}`, `{"n":+Infinity}`, `{"n":nan}`, `{"n":[NaN,Infinity]}`, `{"x":NaN,"n":1}`,
		`{"n":"5"}`, `{"n":" +1_000 "}`, `{"n":"1.0"}`, `{"n":"1.5"}`, `{"n":"1e3"}`, `{"n":"-3"}`, `{"n":""}`, `{"n":"0x10"}`, `{"n":"1__0"}`, `{"n":"_1"}`, `{"n":true}`, `{"n":false}`, `{"n":null}`, `{"n":[1]}`, `{"n":{}}`, `{"n":tru}`, `{"n":True}`, `{"n":nul}`, `{"n":None}`, `{"n":undefined}`, `{"n":truex}`,
		// Booleans.
		`{"stream":true}`, `{"stream":false}`, `{"stream":null}`, `{"stream":1}`, `{"stream":0}`, `{"stream":2}`, `{"stream":1.0}`, `{"stream":"true"}`, `{"stream":"YES"}`, `{"stream":"on"}`, `{"stream":"off"}`, `{"stream":"0"}`, `{"stream":" true"}`, `{"stream":""}`, `{"stream":[]}`, `{"stream":TRUE}`,
		// Nesting.
		`{"a":` + strings.Repeat("[", 98) + strings.Repeat("]", 98) + `,"n":1}`, strings.Repeat(`{"a":`, 99) + "1" + strings.Repeat("}", 99), strings.Repeat("[", 500) + strings.Repeat("]", 500), `{"a":` + strings.Repeat("[", 3000) + strings.Repeat("]", 3000) + `,"n":1}`, `{"a":` + strings.Repeat("[", 3000),
	}
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}

// Form is a multipart body with its Content-Type.
type Form struct {
	ContentType string
	Body        []byte
}

// Forms are forms on which parsers differ or might.
func Forms() []Form {
	const plain = "multipart/form-data; boundary=x"
	model := func(header string) string { return "--x\r\n" + header + "\r\n\r\nwhisper\r\n--x--\r\n" }
	const named = `Content-Disposition: form-data; name="model"`
	file := "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n--\r\n-x\r\n"
	var out []Form
	for _, body := range []string{
		// Plain ones.
		model(named), file + model(named), "--x\r\n" + named + "\r\n\r\nwhisper\r\n" + file + "--x--", "--x\r\n" + named + "\r\n\r\n\r\n--x--\r\n", "--x--\r\n", "--x--", "", "\r\n", "--x\r\n", "--x", "--",
		// Parts that stand twice, parts that are files.
		"--x\r\n" + named + "\r\n\r\na\r\n" + model(named), model(named + `; filename="m"`), model(named + `; filename=""`), model(named + `; filename=m`), model(named + `; filename*=UTF-8''m`), model(named + `; filename*=latin-1''m`), model(named + `; filename*=UTF-8''`), model(named + "\r\n" + named), model(named + "\r\nContent-Disposition: form-data; name=\"other\""), model("Content-Disposition: form-data; name=\"other\"\r\n" + named),
		model(named + `; name="other"`), model(`Content-Disposition: form-data; name="other"; name="model"`), model(`Content-Disposition: form-data; name=other; name="model"`),
		// Dispositions.
		model(`content-disposition: form-data; name="model"`), model(`Content-Disposition:form-data;name="model"`), model(`Content-Disposition: form-data ; name="model"`), model(`Content-Disposition: FORM-DATA; NAME="model"`), model(`Content-Disposition: form-data; Name="model"`), model(`Content-Disposition: attachment; name="model"`), model(`Content-Disposition: form-data; name=model`), model(`Content-Disposition: form-data; name='model'`), model(`Content-Disposition: form-data; name = "model"`),
		model(`Content-Disposition: form-data; name="mod\el"`), model(`Content-Disposition: form-data; name="model\""`), model(`Content-Disposition: form-data; name="mod%65l"`), model(`Content-Disposition: form-data; name*=UTF-8''model`), model(`Content-Disposition: form-data; name="other"; name*=UTF-8''model`), model(`Content-Disposition: form-data; name*0="mod"; name*1="el"`), model(`Content-Disposition: form-data; name=" model"`), model(`Content-Disposition: form-data; name="model "`), model(`Content-Disposition: form-data; name="Model"`), model(`Content-Disposition: form-data; name=""`), model(`Content-Disposition: form-data`), model(`Content-Disposition: form-data;`), model(`Content-Disposition: name="model"`),
		model(`Content-Disposition: form-data; filename="a; name=model"; name="other"`), model(`Content-Disposition: form-data; filename="a\"; name=\"model"; name="other"`), model(`Content-Disposition: form-data; name="a=model"`), model(`Content-Disposition: form-data; name="model"; x`), model(`Content-Disposition: form-data; name="model";`), model(`Content-Disposition: form-data; name=mo del`), model(`Content-Disposition: form-data; name="model`), model(`Content-Disposition: form-data; name=model"`), model("Content-Disposition: form-data; name=\"mod\xc3\xa9l\""), model("Content-Disposition: form-data; name=\"mod\xe9l\""), model("Content-Disposition: form-data; name=\"mod\x00el\""), model(`Content-Disposition: form-data; name="model"; filename="C:\a.wav"`), model(`Content-Disposition: form-data; name="file"; filename="C:\dir\a.wav"`),
		model(`Content-Disposition: form-data; "name"="model"`), model(`Content-Disposition: form-data; name=""model""`), model(`Content-Disposition: form-data; name="model"x`),
		// Headers.
		model(""), "--x\r\n\r\nwhisper\r\n--x--\r\n", model(named + "\r\nContent-Transfer-Encoding: quoted-printable"), "--x\r\n" + named + "\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\nwh=69sper\r\n--x--\r\n", "--x\r\n" + named + "\r\nContent-Transfer-Encoding: base64\r\n\r\nd2hpc3Blcg==\r\n--x--\r\n", model(named + "\r\nContent-Transfer-Encoding: 8bit"), model(named + "\r\nContent-Type: text/plain; charset=utf-16"), model(named + "\r\nContent-Length: 3"), model("X: y\r\n" + named),
		model("Content-Disposition : form-data; name=\"model\""), model(" Content-Disposition: form-data; name=\"model\""), model("Content-Disposition: form-data;\r\n name=\"model\""), model("X: y\r\n " + named), model("Content-Disposition: form-data; name=\"other\"\r\n ; name=\"model\""), model(": x\r\n" + named), model("X\r\n" + named), model("X:\r\n" + named), model("\tX: y\r\n" + named), model(named + " "), model(named + "\t"), model("X: " + strings.Repeat("y", 5000) + "\r\n" + named), model(strings.Repeat("X: y\r\n", 7) + named), model(strings.Repeat("X: y\r\n", 8) + named), model("X: a\x00b\r\n" + named), model("X: a\rb\r\n" + named), model("X: a\nb\r\n" + named), model("X\xff: a\r\n" + named),
		// Lines.
		strings.ReplaceAll(model(named), "\r\n", "\n"), "--x\n" + named + "\n\nwhisper\n--x--\n", "--x\r\n" + named + "\n\r\nwhisper\r\n--x--\r\n", "--x\r\n" + named + "\r\n\nwhisper\r\n--x--\r\n", "--x\r\n" + named + "\r\n\r\nwhisper\n--x--\r\n", "--x\r\n" + named + "\r\n\r\nwhisper\r--x--\r\n", "--x\r" + named + "\r\r\nwhisper\r\n--x--\r\n", "--x\r\n" + named + "\r\n\r\nwhisper--x--\r\n", "--x\r\n" + named + "\r\n\r\n--x--\r\n", "--x\r\n" + named + "\r\n--x--\r\n",
		// Boundaries.
		"before\r\n" + model(named), "\r\n" + model(named), "\n" + model(named), "\r\nbefore-\r\n" + model(named), model(named) + "after", model(named) + file, model(named) + "--x\r\n" + named + "\r\n\r\nother\r\n--x--\r\n", "--x \r\n" + named + "\r\n\r\nwhisper\r\n--x--\r\n", "--x\r\n" + named + "\r\n\r\nwhisper\r\n--x \r\n" + named + "\r\n\r\nother\r\n--x--\r\n", "--x\r\n" + named + "\r\n\r\nwhisper\r\n--x\t--\r\n", "--x\r\n" + named + "\r\n\r\nwhisper\r\n--x-\r\n--x--\r\n",
		"--x\r\n" + named + "\r\n\r\nwhisper\r\n--xy\r\n" + named + "\r\n\r\nother\r\n--x--\r\n", "--xy\r\n" + named + "\r\n\r\nwhisper\r\n--x--\r\n", "--x\r\n" + named + "\r\n\r\nwhisper\r\n--x\n--x--\r\n", "--x\r\n" + named + "\r\n\r\nwhisper\r\n--x\rx\r\n--x--\r\n", "--x\r\n" + named + "\r\n\r\nwhisper\r\n--x\r\r\n--x--\r\n", "--x\r\n" + named + "\r\n\r\nwhisper", "--x\r\n" + named + "\r\n\r\nwhisper\r\n--x", "--x\r\n" + named + "\r\n\r\nwhisper\r\n--x\r", "--x\r\n" + named + "\r\n\r\nwhisper\r\n--x-", "--x\r\n" + named + "\r\n\r\nwhisper\r\n--x\r\n", "--x\r\n" + named + "\r\n\r\nwhisper\r\n--x\r\n" + named, "--x\r\n" + named + "\r\n\r\nwhisper\r\n--x\r\n--x--\r\n", "--x\r\n--x\r\n" + named + "\r\n\r\nwhisper\r\n--x--\r\n", "--x--\r\n" + model(named), "--X\r\n" + named + "\r\n\r\nwhisper\r\n--X--\r\n",
		"--y\r\n" + model(named), model(named + "\r\nX: --x"), "--x\r\n" + named + "\r\n\r\n--x\r\n" + named + "\r\n\r\nother\r\n--x--\r\n",
		// Values.
		"--x\r\n" + named + "\r\n\r\nwhis\xe9per\r\n--x--\r\n", "--x\r\n" + named + "\r\n\r\nwhis\xc3\xa9per\r\n--x--\r\n", "--x\r\n" + named + "\r\n\r\nwhisper\r\n\r\n--x--\r\n", "--x\r\n" + named + "\r\n\r\n whisper\r\n--x--\r\n", "--x\r\n" + named + "\r\n\r\n\"whisper\"\r\n--x--\r\n", "--x\r\n" + named + "\r\n\r\nwhisper\x00\r\n--x--\r\n",
	} {
		out = append(out, Form{plain, []byte(body)})
	}
	for _, contentType := range []string{`multipart/form-data; boundary="x"`, `multipart/form-data;boundary=x`, `multipart/form-data ; boundary=x`, `Multipart/Form-Data; Boundary=x`, `multipart/form-data; BOUNDARY=x`, `multipart/form-data; boundary = x`, `multipart/form-data; charset=utf-8; boundary=x`, `multipart/form-data; boundary=x; charset=latin-1`, `multipart/form-data; boundary=y; boundary=x`, `multipart/form-data; boundary=x; boundary=y`,
		`multipart/form-data; a="; boundary=y"; boundary=x`, `multipart/form-data; boundary*=UTF-8''x`, `multipart/form-data; boundary*0=x`, `multipart/form-data; boundary=y=x`, `multipart/form-data; boundary="\x"`, `multipart/form-data; boundary='x'`, `multipart/form-data; boundary=x,`, `multipart/form-data; boundary=x x`, `multipart/form-data; boundary=`, `multipart/form-data; boundary=""`, `multipart/form-data; boundary`, `multipart/form-data`, `multipart/form-data;`, `multipart/mixed; boundary=x`, `multipart/form-data2; boundary=x`, `application/json`, ``, `multipart/form-data; boundary=x;`, `multipart/form-data; boundary="x"; a`, `multipart/form-data; boundary=` + strings.Repeat("x", 300)} {
		out = append(out, Form{contentType, []byte(file + model(named))})
	}
	for _, contentType := range []string{`multipart/form-data; boundary=y=x`, `multipart/form-data; boundary=x; boundary=y`, `multipart/form-data; a="; boundary=y"; boundary=x`} {
		out = append(out, Form{contentType, []byte("--x\r\n" + named + "\r\n\r\na\r\n--x--\r\n--y\r\n" + named + "\r\n\r\nb\r\n--y--\r\n--y=x\r\n" + named + "\r\n\r\nc\r\n--y=x--\r\n")})
	}
	// A part whose text is a form to whoever finds another boundary.
	inner := "--y=x\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\n--x\r\n" + named + "\r\n\r\nother\r\n--x--\r\n--y=x--\r\n"
	for _, contentType := range []string{`multipart/form-data; boundary=y=x`, `multipart/form-data; boundary="y=x"`, `multipart/form-data; boundary="y=x"; boundary=x`} {
		out = append(out, Form{contentType, []byte(inner)})
	}
	return out
}
