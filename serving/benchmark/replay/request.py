"""A call inside the modelled engine: what SGLang's cache asks of its own requests, and nothing else."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sglang.srt.managers.kv_hints import decode_kv_hints_envelope

from cache_actor.messages import RequestIdentity
from serving.benchmark.workloads import Workflow
from serving.sglang_plugin.recorder import kv_hints

Ids = npt.NDArray[np.int64]


@dataclass
class Row:
    """The call's row in SGLang's request pool."""

    mamba_pool_idx = None
    req_pool_idx: int | None = None
    cache_protected_len: int = 0
    cache_inserted_len: int = 0
    kv_allocated_len: int = 0

    @property
    def holds_kv(self) -> bool:
        return self.req_pool_idx is not None

    def get_evicted_seqlen(self, component: object) -> int:
        return 0

    def swa_dead_lo(self, page_size: int) -> int:
        return 0


class Request:
    """One call. `ids` are its prompt and output tokens, of which `computed` have keys and values.

    Attributes:
        generated: output tokens so far; the last one never gets keys and values.
        hit_device, hit_host: what its first admission found, in tokens.
    """

    extra_key = cache_salt = session = session_id = None
    priority = 0
    kv_rotation_base = None
    swa_host_hit_length = mamba_host_hit_length = 0

    def __init__(self, workflow: Workflow, index: int, prompt: Ids, output: Ids) -> None:
        call = workflow.calls[index]
        self.workflow = workflow
        self.index = index
        self.rid = f"{workflow.id}/{index}"
        self.origin_input_ids = array("q", prompt.tobytes())
        self.ids = array("q", np.concatenate([prompt, output]).tobytes())
        self.output_tokens = len(output)
        final = index + 1 == len(workflow.calls)
        identity = RequestIdentity(workflow.id, call.agent, final=final, source="header")
        self.kv_hints = decode_kv_hints_envelope(kv_hints(identity, self.rid))
        self.kv = Row()
        self.lock: Any = None
        self.last_node: Any = None
        self.computed = 0
        self.generated = 0
        self.cached_tokens_device = 0
        self.cached_tokens_host = 0
        self.cached_tokens_storage = 0
        self.admitted = False
        self.load_done_s = 0.0
        self.first_token_s: float | None = None
        self.done_s = 0.0

    def finished(self) -> bool:
        return self.generated >= self.output_tokens

    @property
    def full_untruncated_fill_ids(self) -> array[int]:
        return self.ids

    @property
    def ahead(self) -> int:
        """Tokens that it may still come to need a place for."""
        return len(self.ids) - self.computed

    @property
    def to_compute(self) -> int:
        """How many tokens the prefill must reach: the prompt, and after a retraction what was generated, too."""
        return len(self.origin_input_ids) + self.generated
