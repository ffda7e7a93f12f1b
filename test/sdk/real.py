"""The checks of test/e2e with real engines, in Python. Environment: LEVELRAIL_URL, _ENGINE, _MODEL, _KEY, _KEY_ONE."""

import json
import os
import sys
import threading
import time

import openai
from openai import OpenAI

ENGINE, MODEL = os.environ["LEVELRAIL_ENGINE"], os.environ["LEVELRAIL_MODEL"]
HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0, "seed": 1}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather of a city.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
checks = []


def client(key="LEVELRAIL_KEY", retries=0):
    return OpenAI(base_url=os.environ["LEVELRAIL_URL"] + "/v1", api_key=os.environ.get(key, key), max_retries=retries, timeout=120)


api = client()


def check(f):
    checks.append(f)
    return f


def refused(kind, call, status, code=None):
    try:
        call()
    except kind as e:
        assert e.status_code == status and (code is None or e.code == code), e
        return e
    raise AssertionError(f"no {kind.__name__}")


@check
def models():
    ids = [m.id for m in api.models.list()]
    assert MODEL in ids, ids
    for i in ids:
        assert api.models.retrieve(i).id == i


@check
def chat():
    a = api.chat.completions.create(**HELLO)
    assert a.choices[0].message.content and 0 < a.usage.completion_tokens <= 8 and a.usage.prompt_tokens > 0, a


@check
def chat_stream():
    whole = api.chat.completions.create(**HELLO).choices[0].message.content
    for asked in (False, True):
        said, usage, n = "", None, 0
        for c in api.chat.completions.create(**HELLO, stream=True, **({"stream_options": {"include_usage": True}} if asked else {})):
            n += 1
            usage = c.usage or usage
            for choice in c.choices:
                said += choice.delta.content or ""
        assert said == whole and n >= 3 and (usage is not None) == asked, (said, whole, n, usage)


@check
def tools():
    more = {"tools": [WEATHER], "messages": [{"role": "user", "content": "How is the weather in Paris?"}], "max_tokens": 60}
    if ENGINE == "ollama":  # of a model whose template has no tools
        return refused(openai.BadRequestError, lambda: api.chat.completions.create(**{**HELLO, **more}), 400)
    said = api.chat.completions.create(**{**HELLO, **more}).choices[0].message
    assert said.tool_calls or said.content, said  # the model is too small to rely on a call
    for call in said.tool_calls or []:
        assert call.function.name == "weather" and isinstance(json.loads(call.function.arguments), dict), call


@check
def json_mode():
    a = api.chat.completions.create(**{**HELLO, "max_tokens": 60}, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}})
    assert isinstance(json.loads(a.choices[0].message.content)["ok"], bool), a


@check
def completions():
    a = api.completions.create(model=MODEL, prompt="One, two,", max_tokens=4, temperature=0)
    assert a.choices[0].text and a.usage.completion_tokens > 0, a


@check
def embeddings():
    ask = lambda: api.embeddings.create(model=MODEL, input=["one", "two"])
    if ENGINE == "llamacpp":  # of a model that is not served for it
        return refused(openai.BadRequestError, ask, 400, "unsupported_by_model")
    a = ask()
    assert [len(e.embedding) for e in a.data] == [576, 576] and a.usage.prompt_tokens >= 2, a.usage


@check
def responses():
    a = api.responses.create(model=MODEL, input="Say hello.", max_output_tokens=16, temperature=0)
    assert a.output_text and a.usage.output_tokens > 0, a
    last = None
    for last in api.responses.create(model=MODEL, input="Say hello.", max_output_tokens=16, temperature=0, stream=True):
        pass
    assert last.type in ("response.completed", "response.incomplete") and last.response.usage.output_tokens > 0, last
    with api.responses.stream(model=MODEL, input="Say hello.", max_output_tokens=16, temperature=0) as built:  # the library builds the answer from events
        text = "".join(e.delta for e in built if e.type == "response.output_text.delta")
    whole = built.get_final_response()
    assert whole.output_text == text != "" and whole.usage.output_tokens_details is not None, whole


@check
def audio():
    sound = ("a.wav", b"RIFF", "audio/wav")
    refused(openai.NotFoundError, lambda: api.audio.transcriptions.create(model=MODEL, file=sound), 404, "unknown_url")


@check
def errors():
    refused(openai.AuthenticationError, lambda: client("lr-wrong").chat.completions.create(**HELLO), 401, "invalid_api_key")
    refused(openai.NotFoundError, lambda: api.chat.completions.create(**{**HELLO, "model": "gpt-4o"}), 404, "model_not_found")
    e = refused(openai.BadRequestError, lambda: api.chat.completions.create(**{**HELLO, "max_tokens": 10**12}), 400, "invalid_body")
    assert e.param == "max_tokens", e


one = lambda retries=0: client("LEVELRAIL_KEY_ONE", retries)
LONG = {**HELLO, "max_tokens": 4000, "stream": True, "messages": [{"role": "user", "content": "Count from one to a thousand, in words."}]}


def hold():
    stream = one().chat.completions.create(**LONG)
    next(iter(stream))
    return stream


@check
def retries():
    stream = hold()
    e = refused(openai.RateLimitError, lambda: one().chat.completions.create(**HELLO), 429, "rate_limit_exceeded")
    wait = int(e.response.headers["retry-after"])
    threading.Timer(0.2, stream.close).start()
    began = time.monotonic()
    assert one(4).chat.completions.create(**HELLO).choices
    assert wait >= 1 and time.monotonic() - began > wait * 0.9


@check
def cancel():
    hold().close()
    deadline = time.monotonic() + 5
    while True:
        try:
            return one().chat.completions.create(**HELLO)
        except openai.RateLimitError:
            assert time.monotonic() < deadline, "the slot is not given back"
            time.sleep(0.05)


for f in checks:
    try:
        f()
        error = ""
    except Exception as e:
        error = f"{type(e).__name__}: {e}"[:2000] or repr(e)
    print(json.dumps({"name": f.__name__, "error": error}), flush=True)
sys.exit(0)
