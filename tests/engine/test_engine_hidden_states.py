"""The hidden state that an engine gives for a prompt is the model's own, of the last token, after the final norm."""

from __future__ import annotations

import numpy as np
import torch
from engine_under_test import CONFIG
from transformers import AutoModel, AutoTokenizer

from serving.benchmark.engine_process import EngineProcess
from serving.benchmark.hidden_states import ENGINE_ARGUMENTS, Prompt, ReadJob, States, cut
from serving.config import CacheConfig
from serving.models import prepare_model

LIMIT = 48
# The second begins as the first does, so that most of it is cached; the last is cut.
PROMPTS: tuple[Prompt, ...] = (
    (("system", "You plan."), ("user", "Find out what newspapers have said.")),
    (("system", "You plan."), ("user", "Find out what newspapers have said. Then stop.")),
    (("user", "wheat prices and coffee exports " * 20),),
)


def test_the_state_is_the_models_own_of_the_last_prompt_token() -> None:
    engine = {**CONFIG.engine, "enable_hierarchical_cache": False} | ENGINE_ARGUMENTS
    config = CONFIG.model_copy(update={"cache": CacheConfig(backend="sglang"), "engine": engine})
    with EngineProcess(config) as process:
        process.ready()
        states = process.read(ReadJob(PROMPTS, LIMIT))
    assert states.shape == (len(PROMPTS), CONFIG.model.random.hidden_size)
    assert np.allclose(states, _expected(prepare_model(CONFIG.model)), atol=0.01)


@torch.inference_mode()
def _expected(folder: str) -> States:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    found = []
    for prompt in PROMPTS:
        messages = [{"role": role, "content": content} for role, content in prompt]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        tokens = cut(tokenizer.encode(text, add_special_tokens=False), LIMIT)
        found.append(model(torch.tensor([tokens])).last_hidden_state[0, -1].numpy())
    return np.stack(found)
