"""LangChain: langchain-openai's ChatOpenAI and OpenAIEmbeddings."""

import os
import time

from harness import KEY, MODEL, PROMPTS, REAL, TEXTS, URL, check, equal, main, refused, said, stub_only
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel


def model(key=KEY, name=MODEL, **more):
    return ChatOpenAI(base_url=URL, api_key=os.environ.get(key, key), model=name, max_retries=more.pop("max_retries", 0), timeout=120, stream_usage=True, **{"max_completion_tokens": 64, **more})


@tool
def weather(city: str, days: int) -> str:
    """The weather of a city for some days."""
    return "sunny"


class Small(BaseModel):
    ok: bool


class Answer(Small):
    city: str


if REAL:
    Answer = Small  # a small model may talk in a string until its tokens are used up


@check
def chat():
    a = model().invoke("one two three")
    said(a.content)
    assert a.usage_metadata["input_tokens"] > 0 and a.usage_metadata["output_tokens"] > 0, a


@check
def stream():
    whole = None
    for c in model().stream("one two three"):
        whole = c if whole is None else whole + c
    said(whole.content)
    assert whole.usage_metadata["output_tokens"] > 0, whole  # asked for by stream_usage, which is off at other addresses than OpenAI's


@check
async def stream_async():
    said("".join([c.content async for c in model().astream("one two three")]))


@check
async def batch():
    for a in await model(max_completion_tokens=8).abatch(["one two three"] * 8):
        assert a.content


@check
def completions():
    llm = OpenAI(base_url=URL, api_key=KEY, model=MODEL, max_retries=0, max_tokens=8, batch_size=PROMPTS)  # prompts in one request
    answers = llm.generate([f"say {i}" for i in range(PROMPTS)]).generations
    assert len(answers) == PROMPTS and all(a[0].text for a in answers), answers
    assert REAL or [a[0].text for a in answers] == [f"You said: say {i}" for i in range(PROMPTS)], answers


@stub_only
def tools():
    m = model().bind_tools([weather])
    question = HumanMessage("Paris")
    a = m.invoke([question])
    equal([(c["name"], c["args"]) for c in a.tool_calls], [("weather", {"city": "Paris", "days": 7})])
    b = m.invoke([question, a, ToolMessage("sunny", tool_call_id=a.tool_calls[0]["id"])])
    equal(b.content, "The tool said: sunny")
    whole = None
    for c in m.stream([question]):
        whole = c if whole is None else whole + c
    equal([(c["name"], c["args"]) for c in whole.tool_calls], [("weather", {"city": "Paris", "days": 7})])


@check
def structured():
    for method in ["json_schema"] if REAL else ["json_schema", "function_calling"]:
        a = model().with_structured_output(Answer, method=method).invoke("Paris")
        assert isinstance(a, Answer), (method, a)


@stub_only
def embeddings():
    # Without the first option the library counts tokens by a table that it fetches from the internet, and sends numbers.
    e = OpenAIEmbeddings(check_embedding_ctx_length=False, base_url=URL, api_key=KEY, model=MODEL, max_retries=0)
    vectors = e.embed_documents(TEXTS)
    equal((len(vectors), len(vectors[0])), (32, 16))
    equal(len(e.embed_query("one")), 16)


@check
def errors():
    refused(lambda: model(key="lr-wrong").invoke("x"), "AuthenticationError", "401", "invalid_api_key")
    refused(lambda: model(name="other").invoke("x"), "NotFoundError", "404", "model_not_found")


@stub_only
def retry():
    refused(lambda: model(key="LEVELRAIL_KEY_SPENT").invoke("x"), "RateLimitError", "429", "rate_limit_exceeded")
    began = time.monotonic()
    refused(lambda: model(key="LEVELRAIL_KEY_SPENT", max_retries=1).invoke("x"), "RateLimitError")
    took = time.monotonic() - began
    assert 0.9 < took, f"it did not wait for Retry-After, but {took:.2f} s"


main()
