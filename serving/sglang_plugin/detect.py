"""Which device SGLang will serve on, asked without importing SGLang."""

from __future__ import annotations

import os
from importlib.metadata import entry_points

import torch

PLATFORM_NAME = "forecache_cpu"
PLATFORM_GROUP = "sglang.srt.platforms"


def steps_aside() -> bool:
    """Whether some other platform should serve: an accelerator, SGLang's CPU engine, or another plug-in."""
    named = os.environ.get("SGLANG_PLATFORM", "")
    if named:
        return named != PLATFORM_NAME
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1":
        return True
    others = [entry.name for entry in entry_points(group=PLATFORM_GROUP) if entry.name != PLATFORM_NAME]
    return bool(others) or has_accelerator()


def default_device() -> str:
    """What an engine on this machine would serve on when its config names no device: `cuda` or `cpu`.

    `cuda` is for any accelerator that Ray counts as a GPU.
    """
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1":
        return "cpu"
    return "cuda" if torch.cuda.is_available() or torch.xpu.is_available() else "cpu"


def has_accelerator() -> bool:
    """Whether PyTorch sees a device that SGLang has a platform for (CUDA, ROCm, XPU, NPU, MUSA, MPS)."""
    if torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available():
        return True
    return any(hasattr(torch, name) and getattr(torch, name).is_available() for name in ("npu", "musa"))
