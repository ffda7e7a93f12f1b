"""The checks of test/sdk in Python. Environment: LEVELRAIL_URL, _ENGINE, _KEY, _KEY_BUSY, _KEY_LOADING, _KEY_SPENT, _KEY_METERED."""

import json
import math
import os
import sys
import threading
import time

import openai
from openai import OpenAI

URL, ENGINE = os.environ["LEVELRAIL_URL"], os.environ["LEVELRAIL_ENGINE"]
checks = []


def client(key="LEVELRAIL_KEY", retries=0):
    return OpenAI(base_url=URL + "/v1", api_key=os.environ.get(key, key), max_retries=retries, timeout=20)


api = client()
HELLO = [{"role": "user", "content": "one two three"}]
SAID = "You said: one two three"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"]},
    },
}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}, "list": {"type": "array", "items": {"enum": ["a", "b"]}}}, "required": ["ok", "list"]}


def check(f):
    checks.append(f)
    return f


def equal(got, want):
    assert got == want, f"{got!r}, want {want!r}"


def stub(**behaviour):
    return {"stub": behaviour}


def refused(kind, call, status, code):
    try:
        call()
    except kind as e:
        equal(e.status_code, status)
        equal(e.code, code)
        assert e.body and e.body.get("message") and e.body.get("type"), e.body
        return e
    raise AssertionError(f"no {kind.__name__}")


@check
def models_list():
    equal([m.id for m in api.models.list()], ["chat", "org/chat-7b", "org/chat-7b:Q4_K_M", "hf.co/org/chat-GGUF:Q4_K_M"])


@check
def models_retrieve():
    for m in api.models.list():
        equal(api.models.retrieve(m.id), m)


@check
def chat():
    a = api.chat.completions.create(model="chat", messages=HELLO)
    equal(a.choices[0].message.content, SAID)
    equal(a.choices[0].finish_reason, "stop")
    equal(a.usage.prompt_tokens, 3)
    assert a.usage.completion_tokens > 0
    equal(api.chat.completions.create(model="org/chat-7b:Q4_K_M", messages=HELLO).choices[0].message.content, SAID)


def text(stream):
    said, usage, finish = "", None, None
    for c in stream:
        usage = c.usage or usage
        for choice in c.choices:
            said += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return said, usage, finish


@check
def chat_stream():
    said, usage, finish = text(api.chat.completions.create(model="chat", messages=HELLO, stream=True, stream_options={"include_usage": True}, extra_body=stub(gap="2ms")))
    equal((said, finish, usage.prompt_tokens), (SAID, "stop", 3))
    equal(text(api.chat.completions.create(model="chat", messages=HELLO, stream=True))[1], None)


@check
def chat_stream_forms():
    for form in [["crlf"], ["comments"], ["tight", "fields"], ["crlf", "comments", "lines"], ["long"]]:
        said = text(api.chat.completions.create(model="chat", messages=HELLO, stream=True, extra_body=stub(form=form, split=11, split_gap="10us") if form != ["long"] else stub(form=form)))[0]
        assert said == SAID if form != ["long"] else len(said) > 200_000, (form, said[:100])


@check
def tools():
    a = api.chat.completions.create(model="chat", messages=[{"role": "user", "content": "Paris"}], tools=[WEATHER])
    call = a.choices[0].message.tool_calls[0]
    equal((a.choices[0].finish_reason, call.function.name, json.loads(call.function.arguments)), ("tool_calls", "weather", {"city": "Paris", "days": 7}))
    b = api.chat.completions.create(model="chat", tools=[WEATHER], messages=[
        {"role": "user", "content": "Paris"}, a.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}])
    equal(b.choices[0].message.content, "The tool said: sunny")


@check
def tools_stream():
    arguments, name = "", ""
    for c in api.chat.completions.create(model="chat", messages=[{"role": "user", "content": "Paris"}], tools=[WEATHER], stream=True):
        for call in c.choices[0].delta.tool_calls or [] if c.choices else []:
            name = call.function.name or name
            arguments += call.function.arguments or ""
    equal((name, json.loads(arguments)), ("weather", {"city": "Paris", "days": 7}))


@check
def json_mode():
    a = api.chat.completions.create(model="chat", messages=HELLO, response_format={"type": "json_object"})
    equal(json.loads(a.choices[0].message.content), {"said": "one two three"})
    a = api.chat.completions.create(model="chat", messages=HELLO, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}})
    equal(json.loads(a.choices[0].message.content), {"ok": True, "list": ["a"]})


@check
def max_tokens():
    a = api.chat.completions.create(model="chat", messages=HELLO, max_completion_tokens=2)
    equal((a.choices[0].finish_reason, a.usage.completion_tokens), ("length", 2))


@check
def completions():
    equal(api.completions.create(model="chat", prompt="x").choices[0].text, "You said: x")
    equal("".join(c.choices[0].text for c in api.completions.create(model="chat", prompt="x", stream=True) if c.choices), "You said: x")


@check
def embeddings():
    a = api.embeddings.create(model="chat", input=["one", "two"])
    equal([len(e.embedding) for e in a.data], [16, 16])
    for e in a.data:
        assert math.isclose(sum(x * x for x in e.embedding), 1, rel_tol=1e-3), e
    equal(a.usage.prompt_tokens, 2)


@check
def responses():
    a = api.responses.create(model="chat", input="hello")
    equal((a.output_text, a.status, a.usage.input_tokens), ("You said: hello", "completed", 1))
    a = api.responses.create(model="chat", input="Paris", tools=[{"type": "function", "strict": False, **WEATHER["function"]}])
    equal((a.output[0].type, json.loads(a.output[0].arguments)), ("function_call", {"city": "Paris", "days": 7}))


@check
def responses_stream():
    said, last = "", None
    for event in api.responses.create(model="chat", input="hello", stream=True, extra_body=stub(gap="2ms")):
        if event.type == "response.output_text.delta":
            said += event.delta
        last = event
    equal((said, last.type, last.response.output_text), ("You said: hello", "response.completed", "You said: hello"))
    assert last.response.usage.output_tokens > 0


if ENGINE == "vllm":

    @check
    def audio():
        sound = ("a.wav", b"12345", "audio/wav")
        equal(api.audio.transcriptions.create(model="chat", file=sound).text, "You sent a.wav with 5 bytes.")
        equal(api.audio.translations.create(model="chat", file=sound).text, "You sent a.wav with 5 bytes.")
        equal(api.audio.transcriptions.create(model="chat", file=sound, response_format="text"), "You sent a.wav with 5 bytes.\n")
        said = "".join(e.delta for e in api.audio.transcriptions.create(model="chat", file=sound, stream=True) if e.type == "transcript.text.delta")
        equal(said, "You sent a.wav with 5 bytes.")


@check
def long_answer():
    a = api.chat.completions.create(model="chat", messages=[{"role": "user", "content": "x" * 300_000}], extra_body=stub(bytes=400_000))
    assert len(a.choices[0].message.content) > 390_000


@check
def compressed():
    a = api.chat.completions.create(model="chat", messages=HELLO, extra_body=stub(compress=True))
    equal((a.choices[0].message.content, a.usage.prompt_tokens), (SAID, 3))
    equal(text(api.chat.completions.create(model="chat", messages=HELLO, stream=True, extra_body=stub(compress=True)))[0], SAID)


@check
def error_401():
    refused(openai.AuthenticationError, lambda: client("lr-wrong").models.list(), 401, "invalid_api_key")
    refused(openai.AuthenticationError, lambda: client("lr-wrong").chat.completions.create(model="chat", messages=HELLO), 401, "invalid_api_key")


@check
def error_404():
    refused(openai.NotFoundError, lambda: api.chat.completions.create(model="other", messages=HELLO), 404, "model_not_found")
    refused(openai.NotFoundError, lambda: api.models.retrieve("org/other"), 404, "model_not_found")
    refused(openai.NotFoundError, lambda: api.post("/score", cast_to=object, body={}), 404, "unknown_url")


@check
def error_400():
    e = refused(openai.BadRequestError, lambda: api.chat.completions.create(model="chat", messages=HELLO, extra_body={"n_predict": 5}), 400, "invalid_body")
    equal(e.param, "n_predict")


@check
def error_of_engine():
    try:
        api.chat.completions.create(model="chat", messages=HELLO, extra_body=stub(status=422))
    except openai.UnprocessableEntityError as e:
        assert "the stub was told to answer 422" in str(e), e
        return
    raise AssertionError("no error")


@check
def error_503():
    e = refused(openai.InternalServerError, lambda: client("LEVELRAIL_KEY_LOADING").chat.completions.create(model="loading", messages=HELLO), 503, "model_loading")
    equal(e.response.headers["retry-after"], "1")


busy = lambda retries=0: client("LEVELRAIL_KEY_BUSY", retries)
ask_busy = lambda c: c.chat.completions.create(model="busy", messages=HELLO)


def until_free():
    deadline = time.monotonic() + 2
    while True:
        try:
            return ask_busy(busy())
        except openai.RateLimitError:
            assert time.monotonic() < deadline, "the slot is not given back"
            time.sleep(0.02)


@check
def error_429_and_retry():
    until_free()
    stream = busy().chat.completions.create(model="busy", messages=HELLO, stream=True, extra_body=stub(endless=True, gap="10ms"))
    next(iter(stream))
    e = refused(openai.RateLimitError, lambda: ask_busy(busy()), 429, "rate_limit_exceeded")
    equal(e.response.headers["retry-after"], "1")
    began = time.monotonic()
    threading.Timer(0.3, stream.close).start()
    equal(ask_busy(busy(3)).choices[0].message.content, SAID)
    took = time.monotonic() - began
    assert 0.9 < took < 5, f"retried after {took:.2f} s"


@check
def error_429_of_key():
    began = time.monotonic()
    spent = client("LEVELRAIL_KEY_SPENT", 1)
    e = refused(openai.RateLimitError, lambda: spent.chat.completions.create(model="chat", messages=HELLO), 429, "rate_limit_exceeded")
    equal(e.response.headers["retry-after"], "1")
    took = time.monotonic() - began
    assert 0.9 < took < 5, f"retried after {took:.2f} s"


@check
def usage_not_asked():
    metered = client("LEVELRAIL_KEY_METERED")

    def chunks(stream):
        all = [c.model_dump(exclude={"id", "created"}) for c in stream]
        assert len(all) >= 3, all
        return all

    for more in [{}, {"stream_options": {"include_usage": False}}, {"stream_options": {"include_usage": True}}]:
        a, b = (chunks(c.chat.completions.create(model="chat", messages=HELLO, stream=True, **more)) for c in (metered, api))
        equal(a, b)
        a, b = (chunks(c.completions.create(model="chat", prompt="one two three", stream=True, **more)) for c in (metered, api))
        equal(a, b)


@check
def cancel():
    until_free()
    for _ in range(3):
        stream = busy().chat.completions.create(model="busy", messages=HELLO, stream=True, extra_body=stub(endless=True, gap="10ms"))
        for i, _ in enumerate(stream):
            if i == 3:
                stream.close()
                break
        until_free()


def broken(**behaviour):
    said = 0
    try:
        for _ in api.chat.completions.create(model="chat", messages=HELLO, stream=True, extra_body=stub(events=5, gap="1ms", **behaviour)):
            said += 1
    except Exception as e:
        assert said >= 2, said
        return e
    raise AssertionError(f"half an answer looks whole, after {said} chunks")


@check
def engine_cut():
    broken(end="cut", at=2)


@check
def engine_dying_words():
    if ENGINE != "ollama":
        assert isinstance(broken(end="error", at=2), openai.APIError)


for f in checks:
    try:
        f()
        error = ""
    except Exception as e:
        error = f"{type(e).__name__}: {e}"[:2000] or repr(e)
    print(json.dumps({"name": f.__name__, "error": error}), flush=True)
sys.exit(0)
