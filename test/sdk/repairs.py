"""What OpenAI's Python library builds from a stream of a real llama-server. Environment: LEVELRAIL_URL, _KEY."""

import json
import os

import openai

api = openai.OpenAI(base_url=os.environ["LEVELRAIL_URL"] + "/v1", api_key=os.environ["LEVELRAIL_KEY"], max_retries=0, timeout=120)


def responses_stream():
    with api.responses.stream(model="chat", input="Say hello.", max_output_tokens=8, temperature=0) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        whole = stream.get_final_response()
    assert whole.output_text == text != "" and whole.usage.output_tokens_details is not None, whole


def fault():
    try:
        api.embeddings.create(model="chat", input="x")
    except openai.BadRequestError as e:
        assert e.code == "unsupported_by_model", e
        return
    raise AssertionError("it was not refused")


for check in (responses_stream, fault):
    error = ""
    try:
        check()
    except Exception as e:
        error = f"{type(e).__name__}: {e}"
    print(json.dumps({"name": check.__name__, "error": error}), flush=True)
