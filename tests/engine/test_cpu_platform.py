"""SGLang on this CPU, with both tiers of HiCache."""

from __future__ import annotations

from engine_under_test import DEVICE_TOKENS, EngineUnderTest

PROMPT_TOKENS = 300
PROMPTS = [[(7 * i + 13 * j) % 2000 + 1 for j in range(PROMPT_TOKENS)] for i in range(12)]


def complete(engine: EngineUnderTest, prompt: list[int]) -> tuple[str, dict[str, int]]:
    status, body = engine.answer({"prompt": prompt, "max_tokens": 8, "temperature": 0}, "completion")
    assert status == 200, body
    return body["choices"][0]["text"], body["usage"]["prompt_tokens_details"]


class TestHiCache:
    def test_prompts_evicted_from_the_device_come_back_from_the_host_unchanged(self, engine: EngineUnderTest) -> None:
        assert len(PROMPTS) * PROMPT_TOKENS > 1.5 * DEVICE_TOKENS
        first = [complete(engine, prompt)[0] for prompt in PROMPTS]
        again = [complete(engine, prompt) for prompt in PROMPTS]
        assert [text for text, _ in again] == first
        from_host = [details for _, details in again if details["host"] > 0]
        assert from_host, "nothing came back from the host tier"
        assert all(details["device"] + details["host"] >= PROMPT_TOKENS - 1 for details in from_host)

    def test_the_platform_in_use_is_ours(self, engine: EngineUnderTest) -> None:
        from sglang.srt.platforms import current_platform

        assert type(current_platform).__name__ == "ForecacheCpuPlatform"
        assert engine.engine.server_args.device == "cpu"
