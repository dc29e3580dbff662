"""An engine of its own: the job on standard input, the result as the last line of standard output."""

from __future__ import annotations

import json
import sys
from typing import Any

from engine_under_test import EngineUnderTest
from mixed_load import mixed_load, mixed_prompts
from storage_jobs import STORAGE_JOBS

from serving.config import AppConfig


def main() -> None:
    said = json.load(sys.stdin)
    engine = EngineUnderTest(AppConfig.model_validate(said["config"]))
    result: dict[str, Any] = {}
    if said["job"] == "one by one":
        result["answers"] = {name: ask(engine, prompt) for name, prompt in mixed_prompts().items()}
    elif said["job"] in STORAGE_JOBS:
        result = STORAGE_JOBS[said["job"]](engine)
    else:
        result["answers"] = engine.run(mixed_load(engine), timeout=300)
        result["check"] = engine.ask("check")
        result["counters"] = engine.ask("figures")["counters"]
    print(json.dumps(result), flush=True)
    engine.close()


def ask(engine: EngineUnderTest, prompt: list[int]) -> str:
    status, body = engine.answer({"prompt": prompt, "max_tokens": 6, "temperature": 0}, "completion")
    assert status == 200, body
    return str(body["choices"][0]["text"])


if __name__ == "__main__":  # SGLang starts its processes by importing this file anew
    main()
