"""The policy as Ray Serve runs it: shipped by value, given Serve's context, wrapped in Serve's delays and bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import ValidationError
from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from serving.app import engine_options
from serving.autoscaling import WorkflowAutoscaling, observation
from serving.config import AppConfig
from serving.scaling import EngineStats

DEPLOYMENT = DeploymentID("EngineReplica", "forecache")


def serve_config(autoscaling: Mapping[str, Any], **scaling: Any) -> AutoscalingConfig:
    """As `build_app` hands it to Serve."""
    args = {"engine": {"device": "cpu"}, "deployment": {"autoscaling_config": autoscaling}, "scaling": scaling}
    return AutoscalingConfig.model_validate(engine_options(AppConfig.model_validate(args))["autoscaling_config"])


def context(
    config: AutoscalingConfig,
    engines: Sequence[EngineStats | None],
    target: int,
    queued: float = 0.0,
    state: Mapping[str, Any] | None = None,
) -> AutoscalingContext:
    """With an older figure before each of the newest; None: an engine that has said nothing."""
    replicas = [ReplicaID(f"r{number}", DEPLOYMENT) for number in range(len(engines))]
    metrics: dict[str, dict[ReplicaID, list[TimeStampedValue]]] = {"running_requests": {}}
    for replica, stats in zip(replicas, engines, strict=True):
        for name, value in (stats.told() if stats else {}).items():
            metrics.setdefault(name, {})[replica] = [TimeStampedValue(1.0, 10 * value), TimeStampedValue(2.0, value)]
    return AutoscalingContext(
        deployment_id=DEPLOYMENT,
        deployment_name=DEPLOYMENT.name,
        app_name=DEPLOYMENT.app_name,
        current_num_replicas=len(replicas),
        target_num_replicas=target,
        running_replicas=replicas,
        total_num_requests=queued,
        total_queued_requests=queued,
        aggregated_metrics={},
        raw_metrics=metrics,
        capacity_adjusted_min_replicas=config.min_replicas,
        capacity_adjusted_max_replicas=config.max_replicas,
        policy_state=dict(state or {}),
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=2.0,
        config=config,
    )


class TestObservation:
    def test_the_newest_figure_of_each_engine_counts(self) -> None:
        stats = [EngineStats(1, 2, 3, 4, 5, 0.5), EngineStats(6, 7)]
        seen = observation(context(serve_config({"max_replicas": 4}), stats, target=3, queued=2.0))
        assert list(seen.engines) == stats
        assert (seen.silent, seen.queued, seen.target, seen.least, seen.most) == (0, 2.0, 3, 1, 4)

    def test_an_engine_that_has_said_nothing_yet_is_known_to_be_there(self) -> None:
        seen = observation(context(serve_config({"max_replicas": 4}), [EngineStats(1), None], target=2))
        assert (len(seen.engines), seen.silent) == (1, 1)

    @pytest.mark.parametrize(("engines", "queued", "counted"), [(1, 0.9, 0), (1, 7.5, 7), (0, 0.1, 0.1)])
    def test_questions_that_pass_through_are_nobody_that_waits(
        self, engines: int, queued: float, counted: float
    ) -> None:
        stats = [EngineStats()] * engines
        assert observation(context(serve_config({"max_replicas": 4}), stats, 1, queued)).queued == counted


class TestInServe:
    def test_it_survives_the_journey_to_the_controller_and_scales_up_at_the_first_decision(self) -> None:
        config = serve_config({"max_replicas": 4}, workflows=10)
        policy = _apply_autoscaling_config(config.policy.get_policy()(**config.policy.policy_kwargs))
        target, state = policy(context(config, [EngineStats(workflows=25)], target=1))
        assert target == 3
        target, _ = policy(context(config, [EngineStats(workflows=1)] * 3, target=3, state=state))
        assert target == 3

    def test_it_scales_down_when_its_own_delay_is_over(self) -> None:
        config = serve_config({"max_replicas": 4}, down_after_s=1e-6)
        policy = _apply_autoscaling_config(WorkflowAutoscaling(**config.policy.policy_kwargs))
        target, state = policy(context(config, [EngineStats(workflows=1)] * 3, target=3))
        assert target == 3
        target, state = policy(context(config, [EngineStats(workflows=1)] * 3, target=3, state=state))
        assert target == 1

    def test_to_zero_and_back(self) -> None:
        config = serve_config({"min_replicas": 0, "max_replicas": 1}, zero_after_s=1e-6)
        policy = _apply_autoscaling_config(WorkflowAutoscaling(**config.policy.policy_kwargs))
        target, state = policy(context(config, [EngineStats(workflows=1)], target=1))
        target, state = policy(context(config, [EngineStats()], target=1, state=state))
        assert target == 0
        assert policy(context(config, [], target=0, state=state))[0] == 0
        assert policy(context(config, [], target=0, queued=1.0, state=state))[0] == 1


class TestConfig:
    def test_what_is_given_to_serve_reaches_serve(self) -> None:
        config = serve_config({"min_replicas": 2, "max_replicas": 9, "downscale_delay_s": 7}, calls=5)
        assert (config.min_replicas, config.max_replicas, config.downscale_delay_s) == (2, 9, 7)
        assert (config.upscale_delay_s, config.policy.policy_kwargs["calls"]) == (0, 5)

    def test_a_policy_of_somebodys_own_is_left_alone(self) -> None:
        own = {"policy": {"policy_function": "ray.serve.autoscaling_policy:default_autoscaling_policy"}}
        config = serve_config({"max_replicas": 4} | own)
        assert config.policy.policy_function == own["policy"]["policy_function"]
        assert config.upscale_delay_s > 0

    def test_a_wrong_setting_is_an_error_that_names_it(self) -> None:
        with pytest.raises(ValidationError, match="workflow_count"):
            serve_config({"max_replicas": 4}, workflow_count=3)

    @pytest.mark.parametrize(("deployment", "seconds"), [({}, 20), ({"autoscaling_config": {"max_replicas": 2}}, 3600)])
    def test_engines_that_come_and_go_have_time_to_finish_their_calls(
        self, deployment: dict[str, Any], seconds: float
    ) -> None:
        args: dict[str, Any] = {"engine": {"device": "cpu"}, "deployment": deployment}
        assert engine_options(AppConfig.model_validate(args))["graceful_shutdown_timeout_s"] == seconds
        args["deployment"] = deployment | {"graceful_shutdown_timeout_s": 5}
        assert engine_options(AppConfig.model_validate(args))["graceful_shutdown_timeout_s"] == 5
