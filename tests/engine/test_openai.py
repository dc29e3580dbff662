"""What one engine answers, through SGLang's own serving classes."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from engine_under_test import EngineUnderTest, new_call

from serving.errors import engine_down

HI: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me something"}],
    "max_tokens": 12,
    "temperature": 0,
}


def events(stream: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def text_of(stream: str) -> str:
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events(stream) if event["choices"])


class TestAnswers:
    def test_a_stream_says_what_a_plain_answer_says(self, engine: EngineUnderTest) -> None:
        status, plain = engine.answer(HI)
        stream_status, stream = engine.answer({**HI, "stream": True})
        assert (status, stream_status) == (200, 200)
        assert text_of(stream) == plain["choices"][0]["message"]["content"]

    def test_the_body_names_the_call_and_the_model(self, engine: EngineUnderTest) -> None:
        call = new_call(HI)
        body = engine.run(_first_body(engine, call))
        assert body["id"] == call.rid
        assert body["model"] == "random"

    def test_n_answers_and_logprobs(self, engine: EngineUnderTest) -> None:
        status, body = engine.answer({**HI, "n": 3, "logprobs": True, "top_logprobs": 2})
        assert status == 200
        assert len(body["choices"]) == 3
        assert len(body["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2

    def test_a_json_schema_is_kept(self, engine: EngineUnderTest) -> None:
        schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
        wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
        _, body = engine.answer({**HI, "max_tokens": 64, "response_format": wanted})
        text = body["choices"][0]["message"]["content"]
        assert text.lstrip().startswith("{")
        assert '"age"' in text

    def test_stop_ends_the_answer(self, engine: EngineUnderTest) -> None:
        _, whole = engine.answer(HI)
        text = whole["choices"][0]["message"]["content"]
        _, cut = engine.answer({**HI, "stop": [text[4:6]]})
        assert cut["choices"][0]["message"]["content"] == text[: text.index(text[4:6])]
        assert cut["choices"][0]["finish_reason"] == "stop"


async def _first_body(engine: EngineUnderTest, call: Any) -> Any:
    return json.loads((await anext(engine.api.answer(call))).body)  # type: ignore[union-attr]


class TestUsage:
    def test_the_second_call_of_a_conversation_reports_its_cached_tokens(self, engine: EngineUnderTest) -> None:
        _, first = engine.answer(HI)
        assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "device": 0, "host": 0}
        answer = first["choices"][0]["message"]["content"]
        turns = [*HI["messages"], {"role": "assistant", "content": answer}, {"role": "user", "content": "And more?"}]
        _, second = engine.answer({**HI, "messages": turns})
        details = second["usage"]["prompt_tokens_details"]
        assert details["device"] == details["cached_tokens"] >= first["usage"]["prompt_tokens"] - 1
        assert details["host"] == 0

    def test_a_stream_reports_the_same_split(self, engine: EngineUnderTest) -> None:
        engine.answer(HI)
        _, plain = engine.answer(HI)
        _, stream = engine.answer({**HI, "stream": True, "stream_options": {"include_usage": True}})
        assert events(stream)[-1]["usage"] == plain["usage"]

    @pytest.mark.parametrize("extra", [{"n": 3}, {"prompt": ["one prompt here", "another prompt there"]}])
    def test_the_split_adds_up_for_several_sequences(self, engine: EngineUnderTest, extra: dict[str, Any]) -> None:
        body = {"prompt": "a prompt that is long enough to be found again", "max_tokens": 4, "temperature": 0} | extra
        engine.answer(body, "completion")
        _, again = engine.answer(body, "completion")
        details = again["usage"]["prompt_tokens_details"]
        assert details["device"] + details["host"] == details["cached_tokens"] > 0


class TestIdentity:
    def test_identity_arrives_in_the_scheduler_exactly_as_sent(self, engine: EngineUnderTest) -> None:
        who = {
            "workflow": "Reise 42 / Zürich",
            "agent": "plänner",
            "parent": "root",
            "final": True,
            "priority": -3,
            "tenant": "key-ab",
            "source": "header",
        }
        call = new_call(HI, **who)
        engine.run(_first_body(engine, call))
        seen = engine.run(_started(engine, call.rid))
        assert seen.identity == call.identity
        assert seen.prompt_tokens > 0

    def test_what_a_client_puts_into_its_body_does_not_replace_it(self, engine: EngineUnderTest) -> None:
        forged = {"kv_hints": {"protocol_version": "1", "message_id": "x", "actions": []}, "rid": "mine"}
        call = new_call({**HI, **forged})
        engine.run(_first_body(engine, call))
        assert engine.run(_started(engine, call.rid)).identity == call.identity


async def _started(engine: EngineUnderTest, rid: str) -> Any:
    async with asyncio.timeout(10):
        while rid not in engine.started_calls:
            await asyncio.sleep(0.01)
    return engine.started_calls[rid]


class TestAbort:
    def test_a_consumer_that_leaves_frees_the_engine(self, engine: EngineUnderTest) -> None:
        async def leave_after_the_first_part() -> None:
            parts = engine.parts({**HI, "stream": True, "max_tokens": 1200, "ignore_eos": True})
            await anext(parts)
            assert (await _scheduler_running(engine, lambda running: running > 0)) == 1
            await parts.aclose()  # type: ignore[attr-defined]
            assert await _scheduler_running(engine, lambda running: running == 0) == 0

        engine.run(leave_after_the_first_part())


async def _scheduler_running(engine: EngineUnderTest, wanted: Any) -> int:
    async with asyncio.timeout(10):
        while not wanted(running := engine.health.snapshot()["running"]):
            await asyncio.sleep(0.02)
    return running


class TestErrors:
    def test_an_engine_that_is_busy_is_not_lost_and_one_that_is_down_is(self, engine: EngineUnderTest) -> None:
        full = engine.api._from_sglang({"message": "The request queue is full."}, 503, "chat")
        assert (full.status, full.retry_after_s) == (503, 2)
        assert not engine.api.error_reply(full).lost
        assert engine.api.error_reply(engine_down("its scheduler is gone", 2)).lost


class TestHealth:
    def test_each_long_forward_is_announced_so_that_patience_can_be_had(self, engine: EngineUnderTest) -> None:
        engine.announced.clear()
        status, body = engine.answer({"prompt": [7 + i % 1000 for i in range(1200)], "max_tokens": 1}, "completion")
        assert (status, body["usage"]["prompt_tokens"]) == (200, 1200)
        # Chunks of 512; the last, of 176, is over too soon to be worth a message.
        assert engine.run(_announced(engine, 2)) == [512, 512]

    def test_the_idle_engine_gives_signs_of_life(self, engine: EngineUnderTest) -> None:
        async def beats() -> None:
            first = engine.last_beat
            async with asyncio.timeout(10):
                while engine.last_beat == first:
                    await asyncio.sleep(0.05)

        engine.run(beats())
        assert engine.health.problem(time.monotonic()) is None


async def _announced(engine: EngineUnderTest, count: int) -> list[int]:
    async with asyncio.timeout(10):
        while len(engine.announced) < count:
            await asyncio.sleep(0.02)
    return engine.announced
