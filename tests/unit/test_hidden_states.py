"""Hidden states of prompts: which tokens are read, what an engine must answer, and what is kept of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.benchmark.hidden_states import (
    Prompt,
    ReadJob,
    States,
    cut,
    kept_states,
    read_states,
    state_of,
    states_file,
)

PROMPTS: tuple[Prompt, ...] = ((("user", "one"),), (("system", "be brief"), ("user", "two")))


@given(st.lists(st.integers(0, 9), max_size=200), st.integers(1, 40))
def test_the_last_tokens_are_read_and_never_fewer_than_half_of_the_limit(tokens: list[int], limit: int) -> None:
    kept = cut(tokens, limit)
    assert len(kept) <= limit
    assert kept == tokens[len(tokens) - len(kept) :]
    assert len(kept) >= min(len(tokens), limit - limit // 2)


def test_a_prompt_that_grows_a_little_keeps_its_beginning() -> None:
    assert [cut(range(length), 40)[0] for length in (90, 100, 101)] == [60, 60, 80]


class Engine:
    """Answers with a state that says how many tokens it was given, and what else it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        tokenizer = SimpleNamespace(apply_chat_template=self._template, encode=lambda text, **_: list(text.encode()))
        self.tokenizer_manager = SimpleNamespace(tokenizer=tokenizer)

    @staticmethod
    def _template(messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        assert add_generation_prompt
        return "".join(message["content"] for message in messages)

    async def async_generate(self, input_ids: list[int], **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        return {"meta_info": {"hidden_states": [float(len(input_ids)), 0.5]}}


def test_each_prompt_has_its_row_and_nothing_is_decoded() -> None:
    engine = Engine()
    states = asyncio.run(read_states(engine, ReadJob(PROMPTS, 8)))
    assert states.tolist() == [[3, 0.5], [7, 0.5]]  # of eleven bytes the first four are cut
    assert states.dtype == np.float16
    assert all(asked["sampling_params"]["max_new_tokens"] == 1 for asked in engine.asked)
    assert all(asked["return_hidden_states"] == "last" for asked in engine.asked)


@pytest.mark.parametrize("meta", [{}, {"hidden_states": None}, {"hidden_states": []}])
def test_an_engine_that_returns_no_state_is_told_what_it_needs(meta: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="return_hidden_states_mode"):
        state_of(meta)


class TestKept:
    states: States = np.array([[1, 2], [3, 4]], np.float16)

    def never(self) -> States:
        raise AssertionError("the states were kept, and are read again")

    def test_what_was_read_once_is_not_read_again(self, tmp_path: Path) -> None:
        file = tmp_path / "new" / "kept.npy"
        assert kept_states(file, 2, lambda: self.states) is self.states
        assert np.array_equal(kept_states(file, 2, self.never), self.states)

    @pytest.mark.parametrize("content", [b"", b"not an array", None])
    def test_a_file_that_is_no_such_array_is_replaced(self, tmp_path: Path, content: bytes | None) -> None:
        file = tmp_path / "kept.npy"
        if content is None:
            np.save(file, self.states[:1])
        else:
            file.write_bytes(content)
        assert np.array_equal(kept_states(file, 2, lambda: self.states), self.states)
        assert np.array_equal(kept_states(file, 2, self.never), self.states)

    def test_other_prompts_another_model_and_another_limit_have_other_files(self, tmp_path: Path) -> None:
        files = {
            states_file(tmp_path, "a", PROMPTS, 8),
            states_file(tmp_path, "b", PROMPTS, 8),
            states_file(tmp_path, "a", PROMPTS[:1], 8),
            states_file(tmp_path, "a", PROMPTS, 9),
        }
        assert len(files) == 4
        assert states_file(tmp_path, "a", PROMPTS, 8) in files
