"""Every config in `configs/` is one that Ray Serve, Forecache and SGLang take, on whatever machine it is built."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from ray.serve._private.build_app import build_app as resolve_application
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema
from sglang.srt.arg_groups.hicache_hook import handle_hicache, handle_hicache_ratio_default
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang.srt.server_args import ServerArgs

from serving.app import AUTOSCALING, COORDINATOR, ENGINE, INGRESS, PREDICTOR, build_app, engine_options, ingress_options
from serving.config import AppConfig
from serving.engine_args import EngineArgumentError, engine_arguments
from serving.sglang_plugin import detect

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))

every_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)


def application(path: Path) -> ServeApplicationSchema:
    schema = ServeDeploySchema.model_validate(yaml.safe_load(path.read_text()))
    (found,) = schema.applications
    return found


def config_of(path: Path) -> AppConfig:
    return AppConfig.model_validate(application(path).args)


def gpu_options(name: str) -> dict[str, Any]:
    return engine_options(config_of(FOLDER / name))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.xpu.is_available", lambda: False)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)


@every_config
class TestEveryConfig:
    def test_ray_serve_and_forecache_take_it(self, path: Path) -> None:
        assert application(path).import_path == "serving.app:build_app"
        assert isinstance(config_of(path), AppConfig)

    def test_it_has_no_key_that_ray_serve_would_ignore(self, path: Path) -> None:
        """Serve's schema lets unknown keys pass, for newer versions' sake."""
        given = yaml.safe_load(path.read_text())
        assert given.keys() <= ServeDeploySchema.model_fields.keys()
        assert given["http_options"].keys() <= {"host", "port"}
        for app in given["applications"]:
            assert app.keys() <= ServeApplicationSchema.model_fields.keys()

    def test_it_builds_without_a_cluster(self, path: Path) -> None:
        config = config_of(path)
        built = resolve_application(build_app(config), name="forecache")
        deployments = {deployment.name: deployment for deployment in built.deployments}
        assert deployments.keys() == {COORDINATOR, ENGINE, INGRESS, PREDICTOR}
        assert built.ingress_deployment_name == INGRESS
        scales = deployments[ENGINE]._deployment_config.autoscaling_config
        if config.deployment.autoscaling_config is None:
            assert (scales, deployments[ENGINE].num_replicas) == (None, config.deployment.num_replicas)
        else:
            assert scales.max_replicas == config.deployment.autoscaling_config["max_replicas"]
        assert deployments[INGRESS].num_replicas == config.deployment.ingress_replicas

    @pytest.mark.parametrize("on_cpu", [True, False])
    def test_sglang_takes_every_engine_argument(self, path: Path, on_cpu: bool) -> None:
        ServerArgs(**engine_arguments(config_of(path), "dummy", on_cpu))

    def test_sglang_knows_its_parsers(self, path: Path) -> None:
        """SGLang checks these when the engine starts, which is late."""
        engine = config_of(path).engine
        assert engine.get("tool_call_parser", "qwen25") in FunctionCallParser.ToolCallParserEnum
        assert engine.get("reasoning_parser", "qwen3") in ReasoningParser.DetectorMap

    def test_its_hicache_layout_and_backend_fit_together(self, path: Path) -> None:
        """SGLang would change one of the two with a warning, or stop at the first copy."""
        config = config_of(path)
        if not config.engine.get("enable_hierarchical_cache"):
            return
        arguments = engine_arguments(config, "dummy", on_cpu=config.engine.get("device") != "cuda")
        server_args = ServerArgs(**arguments)
        handle_hicache_ratio_default(server_args)
        handle_hicache(server_args)
        resolved = resolving_view(server_args)
        for name in ("hicache_io_backend", "hicache_mem_layout", "hicache_write_policy", "hicache_ratio"):
            assert getattr(resolved, name) == arguments[name]
        fitting = {
            "kernel": {"layer_first", "page_first", "page_head"},
            "direct": {"layer_first", "page_first_direct"},
        }
        assert resolved.hicache_mem_layout in fitting[resolved.hicache_io_backend]

    def test_an_unknown_key_is_an_error_that_names_it(self, path: Path) -> None:
        args = application(path).args
        with pytest.raises(ValidationError, match="modle"):
            AppConfig.model_validate(args | {"modle": {}})
        with pytest.raises(ValidationError, match=r"deployment\.num_replica\n"):
            AppConfig.model_validate(args | {"deployment": {"num_replica": 2}})
        with pytest.raises(EngineArgumentError, match=r"engine\.tp_sizes .*'tp_size'"):
            build_app(AppConfig.model_validate(args | {"engine": {"tp_sizes": 2}}))


class TestGpuConfigs:
    @pytest.mark.usefixtures("no_gpu")
    def test_eight_replicas_of_one_gpu_each_also_from_a_head_node_without(self) -> None:
        options = gpu_options("one_node_8gpu.yaml")
        assert options["num_replicas"] == 8
        assert options["ray_actor_options"]["num_gpus"] == 1
        assert options["ray_actor_options"]["num_cpus"] == 4
        assert "placement_group_bundles" not in options

    @pytest.mark.usefixtures("no_gpu")
    def test_four_replicas_of_two_gpus_on_one_node_each_also_from_a_head_node_without(self) -> None:
        options = gpu_options("multi_node_tp.yaml")
        assert options["num_replicas"] == 4
        assert options["ray_actor_options"]["num_gpus"] == 2
        assert options["placement_group_bundles"] == [{"CPU": 6, "GPU": 2}]
        assert options["placement_group_strategy"] == "STRICT_PACK"

    @pytest.mark.usefixtures("no_gpu")
    def test_sixteen_replicas_of_one_gpu_each_also_from_a_head_node_without(self) -> None:
        options = gpu_options("multi_node.yaml")
        assert options["num_replicas"] == 16
        assert options["ray_actor_options"]["num_gpus"] == 1

    @pytest.mark.usefixtures("no_gpu")
    def test_one_to_eight_engines_by_what_workflows_need(self) -> None:
        options = gpu_options("autoscaling.yaml")
        assert "num_replicas" not in options
        assert options["ray_actor_options"]["num_gpus"] == 1
        serves = AutoscalingConfig.model_validate(options["autoscaling_config"])
        assert (serves.min_replicas, serves.max_replicas, serves.policy.policy_function) == (1, 8, AUTOSCALING)

    @pytest.mark.parametrize(
        "name", ["one_node_8gpu.yaml", "multi_node_tp.yaml", "multi_node.yaml", "autoscaling.yaml"]
    )
    def test_the_machine_that_builds_does_not_matter(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        options = []
        for has_gpu, cores in ((False, {0}), (True, set(range(64)))):
            monkeypatch.setattr("torch.cuda.is_available", lambda has_gpu=has_gpu: has_gpu)
            monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
            found = gpu_options(name)
            options.append({key: value for key, value in found.items() if key != "request_router_config"})
        assert options[0] == options[1]


class TestIngresses:
    @staticmethod
    def options(ingresses: int) -> dict[str, Any]:
        return ingress_options(AppConfig.model_validate({"deployment": {"ingress_replicas": ingresses}}))

    @pytest.mark.parametrize("ingresses", [1, 3])
    def test_proxies_know_which_headers_name_a_workflow(self, ingresses: int) -> None:
        options = self.options(ingresses)
        assert options["num_replicas"] == ingresses
        router = options["request_router_config"]
        assert router.request_router_class == "serving.ingress_router.IngressRouter"
        assert router.request_router_kwargs["sources"][:2] == [("x-workflow-id", None), ("x-session-id", None)]
        assert router.get_request_router_class().__name__ == "IngressRouter"

    def test_a_single_one_may_be_behind_serves_haproxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
        assert "request_router_config" not in self.options(1)
        assert "request_router_config" in self.options(2)

    @pytest.mark.parametrize("name", ["multi_node.yaml", "multi_node_tp.yaml", "autoscaling.yaml"])
    def test_on_a_cluster_there_are_several(self, name: str) -> None:
        assert config_of(FOLDER / name).deployment.ingress_replicas >= 2


class TestScaleToZero:
    config = config_of(FOLDER / "laptop_to_zero.yaml")

    def test_a_call_waits_longer_than_an_engine_needs_to_start(self) -> None:
        assert (self.config.deployment.autoscaling_config or {})["min_replicas"] == 0
        assert self.config.limits.engine_wait_s >= 60

    def test_it_is_the_laptop_config_otherwise(self) -> None:
        laptop = config_of(FOLDER / "laptop.yaml")
        same = ("model", "engine", "cache", "identity", "coordinator", "predictor")
        assert [getattr(self.config, name) for name in same] == [getattr(laptop, name) for name in same]


class TestGpusOfAnEngine:
    @staticmethod
    def gpus(**args: Any) -> float:
        gpus: float = engine_options(AppConfig.model_validate(args))["ray_actor_options"]["num_gpus"]
        return gpus

    @pytest.mark.usefixtures("no_gpu")
    @pytest.mark.parametrize(
        ("engine", "gpus"),
        [
            ({}, 0),
            ({"device": "cpu", "tp_size": 2}, 0),
            ({"device": "cuda"}, 1),
            ({"device": "cuda", "tp_size": 2, "pp_size": 2}, 4),
            ({"device": "cuda", "tp_size": 2, "dp_size": 3}, 6),
            ({"device": "cuda", "tp_size": 4, "dp_size": 4, "enable_dp_attention": True}, 4),
        ],
    )
    def test_one_for_each_rank_on_a_gpu(self, engine: dict[str, Any], gpus: int) -> None:
        assert self.gpus(engine=engine) == gpus

    @pytest.mark.usefixtures("a_gpu")
    def test_without_a_device_the_machine_decides(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.gpus(engine={"tp_size": 2}) == 2
        assert self.gpus(engine={"device": "cpu"}) == 0
        monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
        assert detect.default_device() == "cpu"
        assert self.gpus() == 0

    @pytest.mark.usefixtures("no_gpu")
    def test_a_number_in_the_config_wins(self) -> None:
        assert self.gpus(deployment={"num_gpus": 3}) == 3
        assert self.gpus(deployment={"num_gpus": 0}, engine={"device": "cuda"}) == 0


class TestEnvironment:
    @staticmethod
    def environment(**args: Any) -> dict[str, str]:
        options = engine_options(AppConfig.model_validate(args))
        variables: dict[str, str] = options["ray_actor_options"]["runtime_env"]["env_vars"]
        return variables

    def test_cpu_engines_share_the_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
        engine = {"device": "cpu"}
        assert self.environment(engine=engine)["OMP_NUM_THREADS"] == "8"
        assert self.environment(engine=engine, deployment={"num_replicas": 3})["OMP_NUM_THREADS"] == "2"
        assert self.environment(engine=engine, deployment={"num_replicas": 30})["OMP_NUM_THREADS"] == "1"
        assert self.environment(engine=engine, deployment={"cpu_threads": 5})["OMP_NUM_THREADS"] == "5"

    def test_the_config_has_the_last_word(self) -> None:
        environment = self.environment(deployment={"env_vars": {"OMP_NUM_THREADS": "3", "A": "b"}})
        assert environment["OMP_NUM_THREADS"] == "3"
        assert environment["A"] == "b"
