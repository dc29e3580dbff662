"""From the `engine:` block of a config to SGLang's server arguments, with errors a person can act on.

Imports SGLang's argument class (some seconds), never the engine.
"""

from __future__ import annotations

import difflib
import os
import typing
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from serving.config import AppConfig


class EngineArgumentError(ValueError):
    """An `engine:` argument that SGLang does not have, of a wrong type, or that Forecache sets itself."""


OWNED = {
    "model_path": "`model.source` names the model",
    "served_model_name": "`model.name` names it for clients",
    "host": "the HTTP front is Ray Serve's: set `http_options.host`",
    "port": "the HTTP front is Ray Serve's: set `http_options.port`",
    "enable_cache_report": "it is always on",
    "radix_cache_backend": "`cache.backend` names the cache",
    "nnodes": "an engine lives on one node; use more replicas",
    "node_rank": "an engine lives on one node; use more replicas",
    "api_key": "Forecache checks no keys, so nothing would be protected; put a gateway that does in front",
    "admin_api_key": "Forecache checks no keys, so nothing would be protected; put a gateway that does in front",
    "ssl_keyfile": "the HTTP front is Ray Serve's: set `http_options.ssl_keyfile`",
    "ssl_certfile": "the HTTP front is Ray Serve's: set `http_options.ssl_certfile`",
}

# SGLang's own ways to order evictions, which forecache's cache does not look at.
SGLANG_EVICTION = {
    "radix_eviction_policy": "with forecache's cache `cache.policy` names the policy",
    "enable_session_radix_cache": "forecache's cache knows workflows by itself",
}

# What SGLang needs to run on forecache's CPU platform; a config may still set each of them.
CPU_DEFAULTS: dict[str, Any] = {
    "device": "cpu",
    "disable_overlap_schedule": True,
    "sampling_backend": "pytorch",
    "grammar_backend": "xgrammar",
    "sleep_on_idle": True,
    "page_size": 1,
}
CPU_HICACHE_DEFAULTS: dict[str, Any] = {
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "layer_first",
    "hicache_write_policy": "write_through",
}
# With a storage backend a page is a file or an object; SGLang's default would be one for each token.
STORAGE_DEFAULTS: dict[str, Any] = {"page_size": 64}


def check_engine_arguments(engine: dict[str, Any]) -> dict[str, Any]:
    """The `engine:` block with values in SGLang's own types (`"32k"` becomes 32000 where SGLang reads it so).

    Raises:
        EngineArgumentError: an unknown argument (the nearest is named), one that Forecache sets itself, or a value
            that SGLang's argument class refuses.
    """
    from sglang.srt.arg_groups.arg_utils import Arg

    known = _server_arguments()
    checked: dict[str, Any] = {}
    for given, value in engine.items():
        name = given.replace("-", "_")
        if name in OWNED:
            raise EngineArgumentError(f"engine.{given} cannot be set here: {OWNED[name]}")
        if name not in known:
            raise EngineArgumentError(_unknown(given, known))
        if name in checked:
            raise EngineArgumentError(f"engine.{given} is given twice, once with dashes; keep engine.{name}")
        annotation = known[name]
        argument = next((a for a in typing.get_args(annotation)[1:] if isinstance(a, Arg)), None)
        checked[name] = _check_value(name, value, annotation, argument)
    return checked


def config_arguments(config: AppConfig) -> dict[str, Any]:
    """The checked `engine:` block of a config.

    Raises:
        EngineArgumentError: as `check_engine_arguments`, or an argument that the config's cache does not go with.
    """
    engine = check_engine_arguments(config.engine)
    if config.cache.backend == "forecache":
        for name in SGLANG_EVICTION.keys() & engine.keys():
            raise EngineArgumentError(f"engine.{name} needs `cache.backend: sglang`; {SGLANG_EVICTION[name]}")
    _check_storage(engine)
    return engine


def _check_storage(engine: dict[str, Any]) -> None:
    """SGLang would pass over a backend without a host tier, and put files into a folder in /tmp that is anybody's."""
    backend, folder = engine.get("hicache_storage_backend"), engine.get("file_storage_path")
    if backend is not None and not engine.get("enable_hierarchical_cache"):
        raise EngineArgumentError(
            f"engine.hicache_storage_backend {backend!r} needs `engine.enable_hierarchical_cache: true`: what storage "
            "keeps goes through the host tier"
        )
    if backend == "file" and not folder:
        raise EngineArgumentError(
            "engine.hicache_storage_backend 'file' needs `engine.file_storage_path`: a folder that all engines share"
        )
    if folder and backend != "file":
        raise EngineArgumentError("engine.file_storage_path needs `engine.hicache_storage_backend: file`")
    if folder and not os.path.isabs(os.path.expanduser(folder)):
        raise EngineArgumentError(
            f"engine.file_storage_path cannot be {folder!r}: engines have working folders of their own; begin it with /"
        )


def engine_arguments(config: AppConfig, model_path: str, on_cpu: bool) -> dict[str, Any]:
    """The keyword arguments of `sglang.Engine` for this config.

    Args:
        config: what to serve.
        model_path: what `serving.models.prepare_model` returned.
        on_cpu: whether forecache's CPU platform serves.

    Raises:
        EngineArgumentError: as `config_arguments`.
    """
    engine = config_arguments(config)
    arguments: dict[str, Any] = {"log_level": "error"}
    if on_cpu:
        arguments |= CPU_DEFAULTS
        if engine.get("enable_hierarchical_cache"):
            arguments |= CPU_HICACHE_DEFAULTS
    if engine.get("hicache_storage_backend") is not None:
        arguments |= STORAGE_DEFAULTS
    if config.cache.backend == "forecache":
        arguments["radix_cache_backend"] = "forecache"
    arguments |= engine
    arguments |= {
        "model_path": model_path,
        "served_model_name": config.model.served_name,
        "enable_cache_report": True,
    }
    return arguments


def _server_arguments() -> dict[str, Any]:
    import msgspec
    from sglang.srt.server_args import ServerArgs

    return {field.name: field.type for field in msgspec.structs.fields(ServerArgs)}


def _unknown(given: str, known: dict[str, Any]) -> str:
    from sglang.srt.arg_groups.arg_utils import Arg

    spellings = {name: name for name in known}
    for name, annotation in known.items():
        for argument in typing.get_args(annotation)[1:]:
            if isinstance(argument, Arg):
                flags = [*(argument.aliases or ()), argument.cli_name or ""]
                spellings |= {flag.lstrip("-").replace("-", "_"): name for flag in flags if flag}
    wanted = given.lstrip("-").replace("-", "_")
    near = difflib.get_close_matches(wanted, spellings, n=1, cutoff=0.6)
    if not near:
        return f"engine.{given} is not an SGLang server argument"
    meant = spellings[near[0]]
    owned = f" That cannot be set here: {OWNED[meant]}" if meant in OWNED else ""
    return f"engine.{given} is not an SGLang server argument; did you mean {meant!r}?{owned}"


def _check_value(name: str, given: Any, annotation: Any, argument: Any) -> Any:
    value = given
    if argument is not None and argument.type_parser is not None and isinstance(given, str):
        try:
            value = argument.type_parser(given)
        except Exception as error:  # each argument has a parser of its own, with errors of its own
            raise EngineArgumentError(f"engine.{name}: {given!r} cannot be read: {error}") from error
    adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True, strict=True))
    try:
        value = adapter.validate_python(value)
    except ValidationError as error:
        # `preferred_sampling_params` is annotated with the string that SGLang reads it from, not with what it reads.
        if value is given or not _fits(adapter, given):
            reasons = "; ".join(dict.fromkeys(detail["msg"] for detail in error.errors()))
            raise EngineArgumentError(f"engine.{name} cannot be {given!r}: {reasons}") from error
    choices = getattr(argument, "choices", None)
    for one in value if isinstance(value, list) else [value]:
        if choices and one is not None and one not in choices:
            raise EngineArgumentError(f"engine.{name} cannot be {one!r}; choose from {', '.join(map(str, choices))}")
    return value


def _fits(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True
