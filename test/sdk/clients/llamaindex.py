"""LlamaIndex: OpenAILike and OpenAILikeEmbedding."""

import os

from harness import KEY, MODEL, REAL, TEXTS, URL, check, equal, main, refused, said, stub_only
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


def model(key=KEY, name=MODEL, **more):
    # What it cannot know of a model it has not heard of: that it chats, calls functions, and how long its context is.
    return OpenAILike(api_base=URL, api_key=os.environ.get(key, key), model=name, is_chat_model=True, is_function_calling_model=True, context_window=4096,
                      max_tokens=64, max_retries=more.pop("max_retries", 0), timeout=120, **more)


HELLO = [ChatMessage(role="user", content="one two three")]


class Small(BaseModel):
    """An answer."""

    ok: bool


class Answer(Small):
    """An answer."""

    city: str


if REAL:
    Answer = Small  # a small model may talk in a string until its tokens are used up


@check
def chat():
    said(model().chat(HELLO).message.content)
    assert model().complete("one two three").text


@check
def stream():
    said("".join(c.delta or "" for c in model().stream_chat(HELLO)))


@check
async def stream_async():
    said("".join([c.delta or "" async for c in await model().astream_chat(HELLO)]))


@check
def completions():
    m = model()
    m.is_chat_model = False
    assert m.complete("one two three").text


@stub_only
def tools():
    def weather(city: str, days: int) -> str:
        """The weather of a city for some days."""
        return "sunny"

    a = model().chat_with_tools([FunctionTool.from_defaults(weather)], user_msg="Paris")
    calls = model().get_tool_calls_from_response(a)
    equal([(c.tool_name, c.tool_kwargs) for c in calls], [("weather", {"city": "Paris", "days": 7})])


@check
def structured():
    m = model(should_use_structured_outputs=True)
    a = m.as_structured_llm(Answer).chat([ChatMessage(role="user", content="Paris")]).raw
    assert isinstance(a, Answer), a


@stub_only
def embeddings():
    e = OpenAILikeEmbedding(api_base=URL, api_key=KEY, model_name=MODEL, max_retries=0, embed_batch_size=32)
    vectors = e.get_text_embedding_batch(TEXTS)
    equal((len(vectors), len(vectors[0])), (32, 16))


@check
def errors():
    refused(lambda: model(key="lr-wrong").chat(HELLO), "AuthenticationError", "401", "invalid_api_key")
    refused(lambda: model(name="other").chat(HELLO), "NotFoundError", "404", "model_not_found")


@stub_only
def retry():
    refused(lambda: model(key="LEVELRAIL_KEY_SPENT").chat(HELLO), "RateLimitError", "429", "rate_limit_exceeded")


main()
