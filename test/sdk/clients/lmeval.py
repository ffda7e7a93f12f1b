"""lm-eval, the evaluation harness, with a task of its own: nothing is fetched from a hub."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from harness import KEY, MODEL, PROMPTS, REAL, URL, check, main, stub_only

DIR = pathlib.Path(tempfile.mkdtemp())
QUESTIONS = 4 if REAL else 40
(DIR / "repeat.jsonl").write_text("".join(json.dumps({"question": f"word{i}", "answer": f"You said: word{i}"}) + "\n" for i in range(QUESTIONS)))
(DIR / "repeat.yaml").write_text(f"""
task: repeat
dataset_path: json
dataset_kwargs: {{data_files: {{test: {DIR}/repeat.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 16}}
metric_list: [{{metric: exact_match, higher_is_better: true}}]
""")


def evaluate(kind, path, *more, key=KEY, **arguments):
    # Without a tokenizer of the model's on this machine, it leaves counting to the engine.
    a = {"model": MODEL, "base_url": URL + path, "tokenizer_backend": "None", "tokenized_requests": "False", "max_retries": 1, **arguments}
    out = DIR / "out.json"
    out.unlink(missing_ok=True)
    p = subprocess.run(
        [sys.executable, "-m", "lm_eval", "run", "--model", kind, "--model_args", ",".join(f"{k}={v}" for k, v in a.items()), "--tasks", "repeat",
         "--include_path", str(DIR), "--output_path", str(out), *more],
        env={**os.environ, "OPENAI_API_KEY": key, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(DIR)}, capture_output=True, text=True)
    results = list(DIR.glob("out*.json"))
    if p.returncode != 0 or not results:
        raise AssertionError((p.stdout + p.stderr)[-1500:])
    score = json.loads(results[0].read_text())["results"]["repeat"]["exact_match,none"]
    results[0].unlink()
    assert REAL or score == 1, f"of what it repeats {score} is right"


@check
def completions():
    evaluate("local-completions", "/completions", "--batch_size", str(PROMPTS))


@check
def chat():
    evaluate("local-chat-completions", "/chat/completions", "--apply_chat_template", num_concurrent=2 if REAL else 16)


@stub_only
def errors():
    try:
        evaluate("local-chat-completions", "/chat/completions", "--apply_chat_template", key="lr-wrong")
    except AssertionError as e:
        assert "401" in str(e) or "API key" in str(e), e
        return
    raise AssertionError("no error")


main()
