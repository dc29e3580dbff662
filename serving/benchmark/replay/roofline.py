"""Costs of models on GPUs that were not at hand, from the figures that their makers publish.

Prefill is bound by arithmetic, decode by reading weights and keys and values, loads by the bus; each at a share of the
published peak that serving engines commonly reach. Attention is computed for new tokens alone, and plans cost the
engine nothing: they come on cores that do not run the model. The figures are for comparing policies, not for sizing a
cluster: measure yours with `forecache bench calibrate`.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving.benchmark.replay.costs import Costs

ARITHMETIC_SHARE = 0.5
MEMORY_SHARE = 0.7
BUS_SHARE = 0.8
# What a step takes beside the model, and a call beside the steps, in seconds.
PREFILL_STEP_S = 0.005
DECODE_STEP_S = 0.002
CALL_S = 0.01
BYTES = 2  # of a bfloat16


@dataclass(frozen=True, slots=True)
class Model:
    """Parameters without embeddings, and the shape of attention. Source: the model's card."""

    parameters: float
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    source: str

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peaks of one GPU: dense bfloat16 FLOP/s, bytes/s of its memory, bytes/s of its bus in one direction."""

    flops: float
    memory: float
    bus: float
    source: str


MODELS = {
    "qwen3-14b": Model(13.2e9, 40, 40, 8, 128, "Qwen3-14B model card"),
    "qwen3-32b": Model(31.2e9, 64, 64, 8, 128, "Qwen3-32B model card"),
}
GPUS = {
    "a6000": Gpu(154.8e12, 768e9, 32e9, "NVIDIA RTX A6000 data sheet (309.7 TFLOPS with sparsity, PCIe 4.0 x16)"),
    "h100": Gpu(989e12, 3.35e12, 64e9, "NVIDIA H100 SXM data sheet (1,979 TFLOPS with sparsity, PCIe 5.0 x16)"),
}
# Model, GPU, and how many of them an engine takes (tensor parallel): 32B in bfloat16 does not fit on one A6000.
ENGINES = {
    "qwen3-14b-a6000": ("qwen3-14b", "a6000", 1),
    "qwen3-14b-h100": ("qwen3-14b", "h100", 1),
    "qwen3-32b-2xa6000": ("qwen3-32b", "a6000", 2),
    "qwen3-32b-h100": ("qwen3-32b", "h100", 1),
}


def roofline(name: str) -> Costs:
    """The costs of one of `ENGINES`."""
    model_name, gpu_name, gpus = ENGINES[name]
    model, gpu = MODELS[model_name], GPUS[gpu_name]
    arithmetic = gpu.flops * gpus * ARITHMETIC_SHARE
    memory = gpu.memory * gpus * MEMORY_SHARE
    return Costs(
        name=name,
        prefill_s=PREFILL_STEP_S,
        prefill_token_s=2 * model.parameters / arithmetic,
        # Scores and weighted values: two products of head_dim multiplications and additions a head and pair.
        prefill_pair_s=4 * model.layers * model.query_heads * model.head_dim / arithmetic,
        prefill_prefix_pair_s=0.0,
        decode_s=DECODE_STEP_S + model.parameters * BYTES / memory,
        decode_call_s=2 * model.parameters / arithmetic,
        decode_context_s=model.kv_bytes / memory,
        link_tokens_per_s=gpu.bus * gpus * BUS_SHARE / model.kv_bytes,
        call_s=CALL_S,
        plan_s=0.0,
        source=f"{model.source}; {gpus} x {gpu.source}; assumed shares of the peaks: {ARITHMETIC_SHARE:g} of "
        f"arithmetic, {MEMORY_SHARE:g} of memory, {BUS_SHARE:g} of the bus",
    )
