"""Hidden states of prompts from the project's engine, kept in a folder so that training needs no engine again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Message = tuple[str, str]
"""(role, content)."""
Prompt = tuple[Message, ...]
States = npt.NDArray[np.float16]

# What an engine must be started with: it then keeps the state of a call's last token, and of no other.
ENGINE_ARGUMENTS = {"return_hidden_states_mode": "last"}


@dataclass(frozen=True, slots=True)
class ReadJob:
    """Prompts whose hidden states are asked for, and how many of their last tokens are read."""

    prompts: tuple[Prompt, ...]
    limit: int


def cut(tokens: Sequence[int], limit: int) -> list[int]:
    """At most the last `limit` tokens. Cut at multiples of half of it: calls of a workflow share their start."""
    step = max(1, limit // 2)
    beyond = max(0, len(tokens) - limit)
    return list(tokens[-(-beyond // step) * step :])


def state_of(meta: dict[str, Any]) -> States:
    """The state of the last prompt token, from what the engine says of a call that asked for the "last" and one token.

    Raises:
        ValueError: there is none.
    """
    found = meta.get("hidden_states")
    if not found:
        raise ValueError(f"the engine returned no hidden state; it must be started with {ENGINE_ARGUMENTS}")
    return np.asarray(found, np.float32).astype(np.float16)


async def read_states(engine: Any, job: ReadJob) -> States:
    """Float16 of shape (prompts, size), read by prefill alone; one prompt at a time, so that the next finds its
    beginning cached."""
    tokenizer = engine.tokenizer_manager.tokenizer
    found = []
    for prompt in job.prompts:
        messages = [{"role": role, "content": content} for role, content in prompt]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        tokens = cut(tokenizer.encode(text, add_special_tokens=False), job.limit)
        # The first new token comes from the prefill; a second would overwrite the state.
        sampling = {"max_new_tokens": 1, "temperature": 0}
        answer = await engine.async_generate(input_ids=tokens, sampling_params=sampling, return_hidden_states="last")
        found.append(state_of(answer["meta_info"]))
    return np.stack(found)


def states_file(folder: Path, model: str, prompts: Sequence[Prompt], limit: int) -> Path:
    """Where the states of these prompts are kept; other prompts, another model or limit have another file."""
    said = json.dumps([model, limit, prompts]).encode()
    return folder / f"{hashlib.sha256(said).hexdigest()[:16]}.npy"


def kept_states(file: Path, count: int, read: Callable[[], States]) -> States:
    """The states in the file, if it is whole; else what `read` gives, which is then kept."""
    try:
        states: States = np.load(file, allow_pickle=False)
        if states.dtype == np.float16 and states.ndim == 2 and len(states) == count:
            return states
    except (OSError, ValueError, EOFError):
        pass
    states = read()
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    with part.open("wb") as opened:
        np.save(opened, states)
    part.replace(file)
    return states
