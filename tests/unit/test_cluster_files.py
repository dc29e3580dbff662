"""The cluster files are ones that Ray's launcher and KubeRay take, and fit the Serve config that they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve.schema import ServeDeploySchema

from serving.app import engine_options
from serving.config import AppConfig

FOLDER = Path(__file__).parents[2] / "configs"
VERSION = "2.60.0"


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return loaded


def app_config(serve: dict[str, Any]) -> AppConfig:
    (application,) = ServeDeploySchema.model_validate(serve).applications
    return AppConfig.model_validate(application.args)


def most_engines(config: AppConfig) -> int:
    return int((config.deployment.autoscaling_config or {})["max_replicas"])


class TestRayService:
    """Fields by KubeRay's custom resource definitions, ray.io/v1."""

    manifest = load("kuberay/rayservice.yaml")
    cluster = manifest["spec"]["rayClusterConfig"]

    def test_it_is_a_ray_service_with_all_that_is_required(self) -> None:
        assert (self.manifest["apiVersion"], self.manifest["kind"]) == ("ray.io/v1", "RayService")
        assert self.manifest["metadata"]["name"]
        assert self.manifest["spec"].keys() == {"serveConfigV2", "rayClusterConfig"}
        groups = [self.cluster["headGroupSpec"], *self.cluster["workerGroupSpecs"]]
        for group in groups:
            assert all(isinstance(value, str) for value in group["rayStartParams"].values())
            (container,) = group["template"]["spec"]["containers"]
            assert container["name"]
            assert container["image"]
        for group in self.cluster["workerGroupSpecs"]:
            assert group["groupName"]
            assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]

    def test_all_containers_run_the_version_that_is_named(self) -> None:
        import ray

        assert self.cluster["rayVersion"] == ray.__version__ == VERSION

    def test_nodes_come_and_go(self) -> None:
        assert self.cluster["enableInTreeAutoscaling"] is True
        assert self.cluster["autoscalerOptions"]["upscalingMode"] in {"Default", "Aggressive", "Conservative"}
        assert self.cluster["autoscalerOptions"]["idleTimeoutSeconds"] > 0

    def test_what_it_serves_is_the_autoscaling_config(self) -> None:
        assert yaml.safe_load(self.manifest["spec"]["serveConfigV2"]) == load("autoscaling.yaml")

    def test_a_worker_holds_one_engine_and_there_are_as_many_as_engines(self) -> None:
        config = app_config(yaml.safe_load(self.manifest["spec"]["serveConfigV2"]))
        actor = engine_options(config)["ray_actor_options"]
        (group,) = self.cluster["workerGroupSpecs"]
        (container,) = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        assert int(limits["nvidia.com/gpu"]) == actor["num_gpus"] == 1
        assert actor["num_cpus"] <= int(limits["cpu"]) < 2 * actor["num_cpus"]
        assert group["maxReplicas"] == most_engines(config)
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in group["template"]["spec"]["volumes"]}


class TestRayUp:
    def test_rays_launcher_takes_it(self) -> None:
        validate_config(prepare_config(load("cluster/ray_up.yaml")))

    def test_a_worker_holds_an_engine_and_there_are_as_many_as_engines(self) -> None:
        given = load("cluster/ray_up.yaml")
        config = app_config(load("autoscaling.yaml"))
        actor = engine_options(config)["ray_actor_options"]
        types = given["available_node_types"]
        workers = {name: kind for name, kind in types.items() if name != given["head_node_type"]}
        (worker,) = workers.values()
        assert worker["resources"]["GPU"] == actor["num_gpus"]
        assert worker["resources"]["CPU"] >= actor["num_cpus"]
        assert worker["max_workers"] == given["max_workers"] == most_engines(config)
        assert "GPU" not in types[given["head_node_type"]]["resources"]
