"""The `engine:` block: what SGLang takes passes in SGLang's types, all else is an error that says what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.server_args import ServerArgs

from serving.config import AppConfig
from serving.engine_args import (
    CPU_DEFAULTS,
    CPU_HICACHE_DEFAULTS,
    OWNED,
    SGLANG_EVICTION,
    EngineArgumentError,
    check_engine_arguments,
    engine_arguments,
)

# One of each kind of type that SGLang's class has.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tp_size": st.integers(1, 8),
    "max_total_tokens": st.none() | st.integers(1, 10**9),
    "mem_fraction_static": st.none() | st.floats(0.1, 0.9),
    "schedule_conservativeness": st.floats(0.1, 2) | st.integers(1, 2),
    "enable_hierarchical_cache": st.booleans(),
    "skip_server_warmup": st.booleans(),
    "hicache_write_policy": st.sampled_from(["write_back", "write_through", "write_through_selective"]),
    "cuda_graph_backend_decode": st.sampled_from([None, "full", "disabled"]),
    "cuda_graph_bs_decode": st.none() | st.lists(st.integers(1, 256), max_size=3),
    "kv_events_config": st.none() | st.just('{"publisher":"zmq"}'),
    "lora_target_modules": st.none() | st.lists(st.sampled_from(["q_proj", "v_proj", "all"]), min_size=1),
    "default_chat_template_kwargs": st.none() | st.dictionaries(st.text(), st.integers() | st.booleans()),
}
blocks = st.fixed_dictionaries({}, optional=VALUES)


def config(**engine: Any) -> AppConfig:
    return AppConfig.model_validate({"engine": engine})


def error_of(**engine: Any) -> str:
    with pytest.raises(EngineArgumentError) as caught:
        check_engine_arguments(engine)
    return str(caught.value)


class TestWhatPasses:
    @given(blocks)
    def test_it_passes_unchanged_and_sglang_takes_it(self, engine: dict[str, Any]) -> None:
        checked = check_engine_arguments(engine)
        assert checked == engine
        arguments = ServerArgs(model_path="dummy", **checked)
        assert {name: getattr(arguments, name) for name in engine} == engine

    @pytest.mark.parametrize(
        ("given_value", "tokens"), [("32k", 32_000), ("32Ki", 32_768), ("1.5M", 1_500_000), ("77", 77), (5, 5)]
    )
    def test_strings_with_suffixes_are_read_where_sglang_reads_them(self, given_value: str | int, tokens: int) -> None:
        assert check_engine_arguments({"max_total_tokens": given_value}) == {"max_total_tokens": tokens}

    def test_a_json_string_is_read_where_sglang_reads_it(self) -> None:
        """SGLang merges the mapping into every call's parameters; its annotation says str."""
        assert check_engine_arguments({"preferred_sampling_params": '{"top_p": 0.9}'}) == {
            "preferred_sampling_params": {"top_p": 0.9}
        }

    def test_names_may_have_dashes(self) -> None:
        assert check_engine_arguments({"max-running-requests": 8}) == {"max_running_requests": 8}


class TestUnknownNames:
    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("tensor_parallel_size", "tp_size"),
            ("tensor-parallel-size", "tp_size"),
            ("--tensor-parallel-size", "tp_size"),
            ("data_parallel_size", "dp_size"),
            ("fp8_gemm_backend", "fp8_gemm_runner_backend"),
            ("elastic-ep-join-mode", "ep_join_mode"),
            ("max_total_token", "max_total_tokens"),
            ("hicache_write_polcy", "hicache_write_policy"),
        ],
    )
    def test_the_nearest_is_named(self, name: str, meant: str) -> None:
        assert error_of(**{name: 1}) == f"engine.{name} is not an SGLang server argument; did you mean {meant!r}?"

    def test_without_a_near_one_none_is_named(self) -> None:
        assert error_of(xyzzyplugh=1) == "engine.xyzzyplugh is not an SGLang server argument"

    def test_a_name_near_an_owned_one_says_where_to_set_it(self) -> None:
        message = error_of(model="Qwen/Qwen3-14B")
        assert "did you mean 'model_path'?" in message
        assert "`model.source`" in message

    def test_the_same_argument_twice_is_refused(self) -> None:
        assert "given twice" in error_of(**{"tp_size": 1, "tp-size": 2})


class TestOwned:
    @pytest.mark.parametrize("name", OWNED)
    def test_every_one_is_an_sglang_argument_and_says_why_it_is_not_here(self, name: str) -> None:
        assert name in ServerArgs.__struct_fields__
        assert error_of(**{name.replace("_", "-"): None}).endswith(OWNED[name])

    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("model_path", "`model.source`"),
            ("served_model_name", "`model.name`"),
            ("host", "`http_options.host`"),
            ("port", "`http_options.port`"),
            ("ssl_certfile", "`http_options.ssl_certfile`"),
        ],
    )
    def test_the_key_of_the_config_is_named(self, name: str, key: str) -> None:
        assert key in error_of(**{name: "x"})

    def test_a_key_that_would_protect_nothing_is_refused(self) -> None:
        assert "nothing would be protected" in error_of(api_key="secret")


class TestWrongValues:
    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("tp_size", "two", "valid integer"),
            ("tp_size", "2", "valid integer"),
            ("tp_size", True, "valid integer"),
            ("tp_size", 2.0, "valid integer"),
            ("tp_size", None, "valid integer"),
            ("mem_fraction_static", "0.8", "valid number"),
            ("enable_hierarchical_cache", "yes", "valid boolean"),
            ("enable_hierarchical_cache", 1, "valid boolean"),
            ("kv_events_config", 5, "valid string"),
            ("cuda_graph_bs_decode", [1, "2"], "valid integer"),
            ("max_total_tokens", "32 tokens", "suffixes"),
            ("max_total_tokens", "1.5Ki", "Decimals are not allowed"),
            ("default_chat_template_kwargs", "{no json", "cannot be read"),
            ("default_chat_template_kwargs", "5", "valid dictionary"),
            ("hicache_write_policy", "write_trough", "write_through_selective"),
            ("cuda_graph_backend_decode", "half", "'breakable'"),
            ("lora_target_modules", ["q_proj", "nowhere"], "choose from q_proj"),
            ("log_requests_level", 4, "choose from 0, 1, 2, 3"),
        ],
    )
    def test_the_error_names_argument_value_and_remedy(self, name: str, value: Any, says: str) -> None:
        message = error_of(**{name: value})
        assert message.startswith(f"engine.{name}")
        assert says in message
        wrong = value[-1] if isinstance(value, list) else value
        assert repr(wrong) in message


class TestEngineArguments:
    def test_cpu_defaults_are_set_on_cpu_alone(self) -> None:
        on_cpu = engine_arguments(config(), "/model", on_cpu=True)
        on_gpu = engine_arguments(config(), "/model", on_cpu=False)
        assert on_cpu.items() >= CPU_DEFAULTS.items()
        assert on_gpu == {
            "log_level": "error",
            "model_path": "/model",
            "served_model_name": "smollm2-135m",
            "enable_cache_report": True,
            "radix_cache_backend": "forecache",
        }

    def test_a_config_can_have_sglangs_own_cache(self) -> None:
        plain = AppConfig.model_validate({"cache": {"backend": "sglang"}})
        assert "radix_cache_backend" not in engine_arguments(plain, "/model", on_cpu=True)

    @pytest.mark.parametrize("name", SGLANG_EVICTION)
    def test_sglangs_eviction_orders_go_with_sglangs_cache_alone(self, name: str) -> None:
        value = "lfu" if name == "radix_eviction_policy" else True
        with pytest.raises(EngineArgumentError, match=name):
            engine_arguments(config(**{name: value}), "/model", on_cpu=True)
        plain = AppConfig.model_validate({"cache": {"backend": "sglang"}, "engine": {name: value}})
        assert engine_arguments(plain, "/model", on_cpu=True)[name] == value

    @pytest.mark.parametrize("name", CPU_DEFAULTS)
    def test_a_config_overrides_each_cpu_default(self, name: str) -> None:
        other = {"device": "xpu", "sampling_backend": "ascend", "grammar_backend": "none", "page_size": 16}.get(
            name, False
        )
        assert engine_arguments(config(**{name: other}), "/model", on_cpu=True)[name] == other

    def test_hicache_defaults_come_with_the_hierarchical_cache_alone(self) -> None:
        without = engine_arguments(config(enable_hierarchical_cache=False), "/model", on_cpu=True)
        assert not without.keys() & CPU_HICACHE_DEFAULTS.keys()
        tiered = engine_arguments(config(enable_hierarchical_cache=True), "/model", on_cpu=True)
        assert tiered.items() >= CPU_HICACHE_DEFAULTS.items()
        on_gpu = engine_arguments(config(enable_hierarchical_cache=True), "/model", on_cpu=False)
        assert not on_gpu.keys() & CPU_HICACHE_DEFAULTS.keys()

    def test_a_config_overrides_a_hicache_default(self) -> None:
        chosen = config(enable_hierarchical_cache=True, hicache_write_policy="write_back")
        assert engine_arguments(chosen, "/model", on_cpu=True)["hicache_write_policy"] == "write_back"

    @pytest.mark.parametrize("on_cpu", [True, False])
    @given(blocks)
    def test_sglang_takes_the_result(self, on_cpu: bool, engine: dict[str, Any]) -> None:
        ServerArgs(**engine_arguments(config(**engine), "dummy", on_cpu))

    def test_our_own_defaults_pass_our_own_check(self) -> None:
        assert check_engine_arguments(CPU_DEFAULTS | CPU_HICACHE_DEFAULTS) == CPU_DEFAULTS | CPU_HICACHE_DEFAULTS

    def test_the_config_itself_is_left_alone(self) -> None:
        given_config = config(max_total_tokens="32k")
        engine_arguments(given_config, "/model", on_cpu=True)
        assert given_config.engine == {"max_total_tokens": "32k"}


STORAGE = {"enable_hierarchical_cache": True, "hicache_storage_backend": "file", "file_storage_path": "/kv"}


class TestStorage:
    def test_a_page_is_no_single_token(self) -> None:
        assert engine_arguments(config(**STORAGE), "/model", on_cpu=True)["page_size"] == 64
        assert engine_arguments(config(**STORAGE), "/model", on_cpu=False)["page_size"] == 64
        assert engine_arguments(config(**STORAGE, page_size=16), "/model", on_cpu=True)["page_size"] == 16

    @pytest.mark.parametrize(
        ("other", "remedy"),
        [
            ({"enable_hierarchical_cache": False}, "needs `engine.enable_hierarchical_cache: true`"),
            ({"file_storage_path": None}, "needs `engine.file_storage_path`"),
            ({"file_storage_path": "kv"}, "begin it with /"),
            ({"hicache_storage_backend": None}, "needs `engine.hicache_storage_backend: file`"),
        ],
    )
    def test_a_config_that_cannot_work_is_an_error_that_says_what_to_do(
        self, other: dict[str, Any], remedy: str
    ) -> None:
        with pytest.raises(EngineArgumentError, match=re.escape(remedy)):
            engine_arguments(config(**STORAGE | other), "/model", on_cpu=True)
