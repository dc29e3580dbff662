"""The only code that runs inside SGLang's processes; SGLang finds it by the entry points in pyproject.toml.

Both functions run in *every* SGLang process of this Python environment, also in those that have nothing to do
with Forecache, so they import nothing heavy and change nothing that is not asked for.
"""

from __future__ import annotations


def cpu_platform() -> str | None:
    """Entry point of `sglang.srt.platforms`: where SGLang finds the CPU platform, or None to step aside.

    None when the machine has an accelerator that PyTorch sees, when `SGLANG_USE_CPU_ENGINE=1` asks for SGLang's
    own CPU engine, or when another out-of-tree platform is installed (with `SGLANG_PLATFORM=forecache_cpu` SGLang
    does not ask for the others).
    """
    from serving.sglang_plugin.detect import steps_aside

    return None if steps_aside() else "serving.sglang_plugin.platform.ForecacheCpuPlatform"


def load() -> None:
    """Entry point of `sglang.srt.plugins`: HiCache's two tiers on a CPU, the cache backend, the event recorder."""
    from serving.sglang_plugin import platform, recorder

    platform.install()
    if recorder.runs_a_scheduler():
        from serving.sglang_plugin import cache, file_storage

        cache.register()
        file_storage.install()
    recorder.install()
