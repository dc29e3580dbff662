"""SGLang on any CPU, HiCache's host tier included, through SGLang's own plug-in points.

SGLang's in-tree CPU engine wants AMX or `libcuda`; this platform wants PyTorch. It is for laptops, tests and
cache research: the model runs on `torch_native` attention, and "device memory" is a fixed part of the RAM.

SGLang imports this module while it imports itself, so whoever else imports it must have imported SGLang before.
"""

from __future__ import annotations

import logging

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

logger = logging.getLogger("forecache")


class ForecacheCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """A CPU that asks nothing of the machine but PyTorch. SGLang treats it as an out-of-tree device."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_torch_profiler_activity_str(self) -> str:
        return "CPU"

    def get_torch_profiler_activity(self) -> torch.profiler.ProfilerActivity:
        return torch.profiler.ProfilerActivity.CPU


def install() -> None:
    """Makes HiCache work between two pools that are both RAM. Does nothing on any other platform.

    SGLang registers the host pool with CUDA, reads pages of a storage backend into pinned memory, and copies with a
    CUDA kernel; here the pool and the pages are plain memory and a copy is an indexed assignment. All replacements are
    looked up by SGLang at call time.
    """
    from sglang.srt.platforms import current_platform

    if not isinstance(current_platform, ForecacheCpuPlatform):
        return
    from sglang.srt.mem_cache.pool_host import base, common, mha

    common.ALLOC_MEMORY_FUNCS["cpu"] = _allocate_host_pool
    base.HostKVCache.pin_memory = _NeverPinned()
    mha.transfer_kv_direct = _copy_rows
    logger.debug("forecache: HiCache host tier on the CPU platform is ready")


class _NeverPinned:
    """A host pool's `pin_memory`, whatever it is set to: there is no driver that could pin memory."""

    def __get__(self, pool: object, kind: type) -> bool:
        return False

    def __set__(self, pool: object, value: bool) -> None:
        pass


def _allocate_host_pool(
    dims: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    pin_memory: bool,
    allocator: object,
    registration_granularity_bytes: int | None = None,
) -> torch.Tensor:
    """SGLang's host-pool allocator without registering the memory with a device driver."""
    return allocator.allocate(dims, dtype=dtype, device=device)  # type: ignore[attr-defined, no-any-return]


def _copy_rows(
    src_layers: list[torch.Tensor],
    dst_layers: list[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """`sgl_kernel.transfer_kv_direct` by tensor indexing: rows are tokens, in any page size."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]
