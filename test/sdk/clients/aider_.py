"""aider, without a person: one message about one file."""

import os
import pathlib
import subprocess
import sys
import tempfile

from harness import KEY, MODEL, REAL, URL, check, main, stub_only

DIR = pathlib.Path(tempfile.mkdtemp())
(DIR / "f.py").write_text("x = 1\n")


def ask(*more, key=KEY):
    p = subprocess.run(
        [sys.executable, "-m", "aider", "--openai-api-base", URL, "--openai-api-key", key, "--model", "openai/" + MODEL, "--no-git", "--no-show-model-warnings",
         "--no-check-update", "--no-show-release-notes", "--analytics-disable", "--no-pretty", "--yes-always", "--no-detect-urls", "--map-tokens", "0",
         "--edit-format", "ask" if REAL else "whole", *more, "--message", "Say hello.", "f.py"],
        cwd=DIR, env={**os.environ, "HOME": str(DIR), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
    return p.stdout + p.stderr


@check
def stream():
    out = ask()
    assert " received." in out, out[-1500:]  # its count of tokens, after the answer


@check
def chat():
    out = ask("--no-stream")
    assert " received." in out, out[-1500:]


@stub_only
def errors():
    out = ask(key="lr-wrong")
    assert "The API key is not valid here." in out and " received." not in out, out[-1500:]


main()
