"""litellm, as a library: the provider "openai/" with a base address."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches a table of prices from the internet
import litellm

litellm.suppress_debug_info = True
from harness import KEY, MODEL, PROMPTS, REAL, TEXTS, URL, check, equal, main, refused, said, stub_only

HELLO = [{"role": "user", "content": "one two three"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"]}}}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}


def options(key=KEY, name=MODEL, **more):
    return {"model": "openai/" + name, "api_base": URL, "api_key": os.environ.get(key, key), "num_retries": 0, "max_retries": 0, "timeout": 120, "max_tokens": 64, **more}


def ask(**more):
    return litellm.completion(**{"messages": HELLO, **options(**more)})


@check
def chat():
    a = ask()
    said(a.choices[0].message.content)
    assert a.usage.prompt_tokens > 0 and a.usage.completion_tokens > 0, a


@check
def stream():
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    said("".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
    assert any(getattr(c, "usage", None) for c in chunks), chunks[-1]


@check
async def stream_async():
    said("".join([c.choices[0].delta.content or "" async for c in await litellm.acompletion(messages=HELLO, stream=True, **options())]))


@check
def batch():
    a = litellm.text_completion(prompt=[f"say {i}" for i in range(PROMPTS)], **options(max_tokens=8))
    assert len(a.choices) == PROMPTS and all(c.text for c in a.choices), a
    assert REAL or [c.text for c in a.choices] == [f"You said: say {i}" for i in range(PROMPTS)], a


@stub_only
def tools():
    a = ask(messages=[{"role": "user", "content": "Paris"}], tools=[WEATHER])
    call = a.choices[0].message.tool_calls[0].function
    equal((call.name, json.loads(call.arguments)), ("weather", {"city": "Paris", "days": 7}))


@check
def structured():
    a = ask(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}})
    assert isinstance(json.loads(a.choices[0].message.content)["ok"], bool), a


@stub_only
def embeddings():
    o = options()
    del o["max_tokens"]
    a = litellm.embedding(input=TEXTS, encoding_format="float", **o)
    equal((len(a.data), len(a.data[0]["embedding"])), (32, 16))


@stub_only
def responses():
    o = options()
    del o["max_tokens"]
    a = litellm.responses(input="one two three", **o)
    equal(a.output[0].content[0].text, "You said: one two three")


@check
def errors():
    refused(lambda: ask(key="lr-wrong"), "AuthenticationError", "API key")
    refused(lambda: ask(name="other"), "NotFoundError", "GET /v1/models lists")


@stub_only
def retry():
    refused(lambda: ask(key="LEVELRAIL_KEY_SPENT"), "RateLimitError")


main()
