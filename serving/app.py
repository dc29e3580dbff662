"""`import_path` of every config: from an `AppConfig` to a Ray Serve application.

Without `from __future__ import annotations`: Ray Serve parses `args:` by the class it finds in the signature.
"""

import os
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from cache_actor.coordinator import CacheCoordinator
from predictor_actor.predictor import PredictorReplica, PredictorSettings
from serving.config import AppConfig, DeploymentConfig, ScalingConfig
from serving.engine import EngineReplica
from serving.engine_args import config_arguments
from serving.identity import header_sources
from serving.ingress import Ingress
from serving.ingress_router import IngressRouter
from serving.models import cache_folder, file_name
from serving.router import EngineRouter
from serving.sglang_plugin.detect import default_device

ENGINE = "EngineReplica"
INGRESS = "Ingress"
COORDINATOR = "CacheCoordinator"
PREDICTOR = "Predictor"
_HEALTH_CHECK_TIMEOUT_S = 30
# Asked by machines, over and over: that is not worth a line each.
_QUIET = {"enable_access_log": False}
AUTOSCALING = "serving.autoscaling:WorkflowAutoscaling"
# Serve has engines' figures taken five times in this, in seconds. It warns of less than ten.
_LOOK_BACK_S = 12.0
_PUSH = {f"RAY_SERVE_{whose}_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2" for whose in ("REPLICA", "HANDLE")}
# Each asks where the coordinator is when it begins; all of them at once when that is another.
_MOST_ENGINES = 4096


def build_app(args: AppConfig) -> serve.Application:
    """The application: ingresses over the engines, and the coordinator that they report to.

    Raises:
        EngineArgumentError: an `engine:` argument that SGLang does not take, before anything is started.
    """
    coordinator = coordinator_of(args)
    engines = serve.deployment(EngineReplica, name=ENGINE).options(**engine_options(args)).bind(args, coordinator)
    ingress = serve.deployment(Ingress, name=INGRESS).options(**ingress_options(args))
    return ingress.bind(args, engines, coordinator)


def ingress_options(config: AppConfig) -> dict[str, Any]:
    """Ray Serve's deployment options of the ingresses.

    A single one has the router, too: proxies go on with the router that a deployment began with, so that there could
    never be more of it. Only Serve's HAProxy takes none, and so several ingresses neither.
    """
    options: dict[str, Any] = {
        "num_replicas": config.deployment.ingress_replicas,
        "max_ongoing_requests": 2 * config.limits.max_inflight_requests + config.admission.max_waiting,
        "ray_actor_options": _beside_engines(config.deployment)
        | {"runtime_env": {"env_vars": _push_often(config.deployment)}},
        "health_check_period_s": config.health.check_period_s,
        "graceful_shutdown_timeout_s": config.deployment.drain_s,
    }
    if config.deployment.ingress_replicas > 1 or os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") != "1":
        sources = [(names.session, names.child) for _, names in header_sources(config.identity)]
        options["request_router_config"] = RequestRouterConfig(
            request_router_class=IngressRouter, request_router_kwargs={"sources": sources}
        )
    return options


def coordinator_of(config: AppConfig) -> serve.Application | None:
    """The coordinator; None if it is disabled, or the engines' cache could not do what it says."""
    if not config.coordinator.enabled or config.cache.backend != "forecache":
        return None
    coordinator = serve.deployment(CacheCoordinator, name=COORDINATOR).options(
        num_replicas=1,
        max_ongoing_requests=_MOST_ENGINES,
        ray_actor_options=_beside_engines(config.deployment),
        health_check_period_s=config.health.check_period_s,
        health_check_timeout_s=_HEALTH_CHECK_TIMEOUT_S,
        graceful_shutdown_timeout_s=1.0,
        logging_config=_QUIET,
    )
    return coordinator.bind(config.coordinator, predictor_deployment(config), config.identity.idle_timeout_s)


def predictor_deployment(config: AppConfig) -> serve.Application | None:
    """The predictor, to be bound to whoever asks it; None if there is to be none."""
    predictor = config.predictor
    if not predictor.enabled:
        return None
    folder = predictor.traces_dir
    if folder is None:
        folder = str(cache_folder() / "predictor" / file_name(config.model.served_name))
    settings = PredictorSettings(
        checkpoint=predictor.checkpoint,
        folder=folder,
        learn=predictor.learn,
        retrain_max_s=predictor.retrain_max_s,
        retrain_threads=predictor.retrain_threads,
        max_batch_size=predictor.max_batch_size,
        batch_wait_s=predictor.batch_wait_s,
    )
    deployment = serve.deployment(PredictorReplica, name=PREDICTOR).options(
        num_replicas=predictor.num_replicas,
        max_ongoing_requests=predictor.max_ongoing_requests,
        ray_actor_options=_beside_engines(config.deployment),
        health_check_period_s=config.health.check_period_s,
        graceful_shutdown_timeout_s=config.deployment.drain_s,
        logging_config=_QUIET,
    )
    return deployment.bind(settings)


def engine_options(config: AppConfig) -> dict[str, Any]:
    """Ray Serve's deployment options of the engines.

    An engine with more than one rank gets a placement group of one bundle, so that its GPUs are on one node.
    """
    deployment = config.deployment
    engine = config_arguments(config)
    ranks = engine.get("tp_size", 1) * engine.get("pp_size", 1)
    if not engine.get("enable_dp_attention"):  # with it the data-parallel groups are inside the tensor-parallel one
        ranks *= engine.get("dp_size", 1)
    gpus = deployment.num_gpus
    if gpus is None:
        gpus = ranks if (engine.get("device") or default_device()) != "cpu" else 0
    actor: dict[str, Any] = {
        "num_cpus": deployment.num_cpus,
        "num_gpus": gpus,
        "resources": deployment.resources,
        "runtime_env": {"env_vars": _environment(config, on_cpu=gpus == 0)},
    }
    options: dict[str, Any] = {
        "ray_actor_options": actor,
        "max_ongoing_requests": deployment.max_ongoing_requests,
        "max_queued_requests": deployment.max_queued_requests,
        "graceful_shutdown_timeout_s": deployment.drain_s,
        "health_check_period_s": config.health.check_period_s,
        "health_check_timeout_s": _HEALTH_CHECK_TIMEOUT_S,
        "request_router_config": RequestRouterConfig(
            request_router_class=EngineRouter,
            request_router_kwargs=config.routing_table(),
        ),
    }
    if deployment.autoscaling_config is not None:
        options["autoscaling_config"] = _autoscaling(deployment.autoscaling_config, config.scaling)
    else:
        options["num_replicas"] = deployment.num_replicas
    if ranks > 1:
        bundle = {"CPU": deployment.num_cpus, **deployment.resources}
        options["placement_group_bundles"] = [bundle | ({"GPU": gpus} if gpus else {})]
        options["placement_group_strategy"] = "STRICT_PACK"
    return options


def _beside_engines(deployment: DeploymentConfig) -> dict[str, Any]:
    """Of what is no engine. Where engines come and go, nodes do, too: then it is on the head node, which stays."""
    resources = {} if deployment.autoscaling_config is None else {"node:__internal_head__": 0.001}
    return {"num_cpus": 0, "resources": resources}


def _autoscaling(given: dict[str, Any], scaling: ScalingConfig) -> dict[str, Any]:
    """Serve's `autoscaling_config`: with our policy, which has delays of its own, unless it names another."""
    if "policy" in given:
        return given
    policy = {"policy_function": AUTOSCALING, "policy_kwargs": scaling.model_dump()}
    own = {"policy": policy, "upscale_delay_s": 0, "downscale_delay_s": 0, "look_back_period_s": _LOOK_BACK_S}
    return own | given


def _push_often(deployment: DeploymentConfig) -> dict[str, str]:
    """For a process whose figures the autoscaling waits for: Serve would have them pushed every ten seconds."""
    return {} if deployment.autoscaling_config is None else _PUSH


def _most_replicas(deployment: DeploymentConfig) -> int:
    autoscaling = deployment.autoscaling_config
    return deployment.num_replicas if autoscaling is None else int(autoscaling.get("max_replicas", 1))


def _environment(config: AppConfig, on_cpu: bool) -> dict[str, str]:
    """The engine's environment: what the config says, and the compute threads of a CPU engine.

    Ray would give a process as many threads as CPUs it reserves; a CPU engine wants its share of the machine.
    """
    deployment = config.deployment
    threads = deployment.cpu_threads
    if threads is None and on_cpu:
        threads = max(1, len(os.sched_getaffinity(0)) // _most_replicas(deployment))
    # SGLang warns at import, once a process, of every kernel that this device has not.
    environment = {"PYTHONWARNINGS": "ignore::UserWarning"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    return environment | _push_often(deployment) | deployment.env_vars
