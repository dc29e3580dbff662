"""Starts the SGLang engine of a replica. Imports SGLang as a whole (many seconds): import it where the engine runs."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
from typing import Any

from sglang.srt.entrypoints.engine import Engine, init_tokenizer_manager
from sglang.srt.managers.load_snapshot import shm_path_for
from sglang.srt.mem_cache.utils import get_native_hash
from sglang.srt.platforms import current_platform

from serving.config import AppConfig
from serving.engine_args import EngineArgumentError, engine_arguments
from serving.learned import LearnedFile
from serving.models import prepare_model
from serving.openai_api import OpenAIApi, RecordingTokenizerManager
from serving.run_directory import RunDirectory
from serving.sglang_plugin.channel import ADDRESS_VARIABLE
from serving.sglang_plugin.plans import ADDRESS_VARIABLE as PLANS_VARIABLE
from serving.sglang_plugin.platform import ForecacheCpuPlatform
from serving.sglang_plugin.settings import CacheSettings
from serving.storage import prepare_storage, storage_root

logger = logging.getLogger("forecache")


class RecordingEngine(Engine):
    """SGLang's engine with our tokenizer manager, by the override point that SGLang leaves for it."""

    @staticmethod
    def init_tokenizer_manager_func(
        server_args: Any, port_args: Any, manager_class: Any = RecordingTokenizerManager
    ) -> Any:
        return init_tokenizer_manager(server_args, port_args, manager_class)


def start_engine(
    config: AppConfig, engine_id: str, channel: str, plans: str, run_directory: RunDirectory
) -> RecordingEngine:
    """Prepares the model and starts the engine; returns when it can serve.

    Args:
        config: what to serve, and SGLang's arguments.
        engine_id: for the log.
        channel: address that the engine's schedulers send their events to.
        plans: address at which the first of them takes plans.
        run_directory: where the engine's sockets and temporary files go.

    Raises:
        ModelError, EngineArgumentError: with the value and the remedy.
        RuntimeError: SGLang's scheduler did not come up.
    """
    logger.info("forecache engine %s: preparing model %r", engine_id, config.model.source)
    model_path = prepare_model(config.model)
    on_cpu = isinstance(current_platform, ForecacheCpuPlatform)
    arguments = engine_arguments(config, model_path, on_cpu)
    if arguments.get("hicache_storage_backend") is not None:
        _check_page_hashes()
    if (root := storage_root(config)) is not None:
        folder = prepare_storage(root, config.model.served_name, model_path, arguments)
        arguments["file_storage_path"] = str(folder)
        os.environ.pop("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", None)  # would be used instead
    if on_cpu:
        _share_cores(int(arguments.get("tp_size", 1)) * int(arguments.get("pp_size", 1)))
    listed = ", ".join(f"{name}={value!r}" for name, value in sorted(arguments.items()))
    logger.info("forecache engine %s: starting SGLang on %s: %s", engine_id, current_platform.device_name, listed)
    os.environ[ADDRESS_VARIABLE] = channel
    os.environ[PLANS_VARIABLE] = plans
    cache = config.cache
    CacheSettings(
        policy=cache.policy,
        parameters=cache.parameters,
        tiers=cache.tiers,
        max_workflows=cache.max_workflows,
        prefetch=cache.prefetch,
        prefetch_reserve_tokens=_reserve(arguments, cache.prefetch_reserve_tokens),
        prefetch_tokens_per_s=cache.prefetch_tokens_per_s,
        learned_file=LearnedFile(cache.learned_dir, config.model.served_name).copy_to(run_directory.path),
    ).to_environment()
    run_directory.use_for_temporary_files()
    _ignore_sigquit()
    engine = RecordingEngine(**arguments)
    run_directory.own(shm_path_for(engine.port_args.instance_id))
    # SGLang's own watchdog would end this process before it could answer anybody; the replica watches instead.
    engine.tokenizer_manager._subprocess_watchdog.stop()
    return engine


def _check_page_hashes() -> None:
    """SGLang builds what names pages from C++ at the first use; without it its scheduler would end there."""
    try:
        get_native_hash([1], None, 1)
    except Exception as error:  # whatever a compiler, a linker or a loader says
        raise EngineArgumentError(
            "engine.hicache_storage_backend needs a C++ compiler, ninja and OpenSSL's headers where engines run: "
            f"{error}: {error.__cause__}"
        ) from error


def _share_cores(ranks: int) -> None:
    """Each rank of a CPU engine gets a share of the cores; SGLang would bind it to a NUMA node of its own."""
    if ranks > 1:
        cores = sorted(os.sched_getaffinity(0))
        shares = [cores[rank::ranks] or cores for rank in range(ranks)]
        os.environ.setdefault(
            "SGLANG_CPU_OMP_THREADS_BIND", "|".join(",".join(str(core) for core in share) for share in shares)
        )


def _reserve(arguments: dict[str, Any], configured: int | None) -> int:
    """Tokens that prefetching leaves free: one prefill chunk, and never more than half of a small pool."""
    chunk = int(arguments.get("chunked_prefill_size") or 8192)
    pool = arguments.get("max_total_tokens")
    reserve = configured if configured is not None else chunk
    return min(reserve, int(pool) // 2) if pool else reserve


def openai_api(engine: RecordingEngine, config: AppConfig, engine_id: str) -> OpenAIApi:
    """The OpenAI surface of an engine that has been started."""
    return OpenAIApi(engine.tokenizer_manager, engine.template_manager, engine_id, config.limits.retry_after_s)


def _ignore_sigquit() -> None:
    """SGLang's children report a failure by SIGQUIT to their parent, which would end this actor without a word.

    The replica sees the child end and acts on that. Python sets signal handlers from the main thread alone, and a
    replica is not in it; the C library does not mind.
    """
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGQUIT, signal.SIG_IGN)
