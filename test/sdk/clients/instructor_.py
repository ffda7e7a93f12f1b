"""instructor over openai-python, and openai-python's own asynchronous client."""

import asyncio
import os

import instructor
import openai
from harness import KEY, MODEL, REAL, TEXTS, URL, check, equal, main, refused, said, stub_only
from pydantic import BaseModel

HELLO = [{"role": "user", "content": "one two three"}]


class Small(BaseModel):
    ok: bool


class Answer(Small):
    city: str


if REAL:
    Answer = Small  # a small model may talk in a string until its tokens are used up


def client(key=KEY, kind=openai.AsyncOpenAI, **more):
    return kind(base_url=URL, api_key=os.environ.get(key, key), max_retries=more.pop("max_retries", 0), timeout=120, **more)


@check
async def chat():
    async with client() as c:
        answers = await asyncio.gather(*(c.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8) for _ in range(16)))
    for a in answers:
        assert a.choices[0].message.content, a


@check
async def stream():
    async with client() as c:
        text = ""
        async for chunk in await c.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=64, stream=True):
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        said(text)


@check
async def parse():
    async with client() as c:
        a = await c.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Answer, max_tokens=64)
        assert isinstance(a.choices[0].message.parsed, Answer), a


@check
def structured():
    for mode in [instructor.Mode.JSON_SCHEMA] if REAL else [instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT]:
        c = instructor.from_openai(client(kind=openai.OpenAI), mode=mode)
        a = c.chat.completions.create(model=MODEL, messages=HELLO, response_model=Answer, max_tokens=64, max_retries=1)
        assert isinstance(a, Answer), (mode, a)


@check
async def structured_async():
    c = instructor.from_openai(client(), mode=instructor.Mode.JSON_SCHEMA)
    assert isinstance(await c.chat.completions.create(model=MODEL, messages=HELLO, response_model=Answer, max_tokens=64), Answer)


@stub_only
async def embeddings():
    async with client() as c:
        a = await c.embeddings.create(model=MODEL, input=TEXTS)
        equal((len(a.data), len(a.data[0].embedding)), (32, 16))


@check
async def errors():
    async with client(key="lr-wrong") as c:
        try:
            await c.chat.completions.create(model=MODEL, messages=HELLO)
        except openai.AuthenticationError as e:
            return equal(e.code, "invalid_api_key")
    raise AssertionError("no error")


main()
