"""Answers prompts with an engine of its own, one at a time: a job on standard input, the answers on standard output."""

from __future__ import annotations

import json
import sys

from conftest import EngineUnderTest

from serving.config import AppConfig


def main() -> None:
    job = json.load(sys.stdin)
    engine = EngineUnderTest(AppConfig.model_validate(job["config"]))
    answers = {}
    for name, prompt in job["prompts"].items():
        status, body = engine.answer({"prompt": prompt, "max_tokens": 6, "temperature": 0}, "completion")
        assert status == 200, body
        answers[name] = body["choices"][0]["text"]
    print(json.dumps(answers), flush=True)
    engine.close()


if __name__ == "__main__":  # SGLang starts its processes by importing this file anew
    main()
