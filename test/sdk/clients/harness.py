"""What the suites of clients in Python share. Environment: as test/sdk's own suites."""

import asyncio
import inspect
import json
import os
import sys

URL, KEY = os.environ["LEVELRAIL_URL"] + "/v1", os.environ["LEVELRAIL_KEY"]
ENGINE = os.environ["LEVELRAIL_ENGINE"]
REAL = os.environ.get("LEVELRAIL_MODEL")  # against an engine with weights, which says what it likes
MODEL = REAL or "chat"
SAID = "You said: one two three"
PROMPTS = 4 if REAL else 32  # of one request
TEXTS = [f"text number {i}" for i in range(32)]  # as libraries batch them
checks = []


def check(f):
    checks.append(f)
    return f


def stub_only(f):
    return f if REAL else check(f)


def equal(got, want):
    assert got == want, f"{got!r}, want {want!r}"


def said(text):
    assert text == SAID or REAL and text, text


def refused(call, *parts, kind=Exception):
    """holds that a call fails, and with words of the gateway."""
    try:
        call()
    except kind as e:
        text = f"{type(e).__name__}: {e} {getattr(e, 'code', '')}"
        for part in parts:
            assert part in text, f"{text!r} has no {part!r}"
        return e
    raise AssertionError("no error")


def main():
    loop = asyncio.new_event_loop()  # one for all: libraries keep connections that belong to a loop
    for f in checks:
        try:
            if inspect.iscoroutinefunction(f):
                loop.run_until_complete(f())
            else:
                f()
            error = ""
        except Exception as e:
            error = f"{type(e).__name__}: {e}"[:2000] or repr(e)
        print(json.dumps({"name": f.__name__, "error": error}), flush=True)
    loop.run_until_complete(loop.shutdown_asyncgens())
    sys.exit(0)
