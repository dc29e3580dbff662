"""The README says what is true."""

from __future__ import annotations

import re
from pathlib import Path

from coordinator_reports import MadeUpEngine, began

from cache_actor.cluster import Cluster
from cache_actor.runtime import Draft, RuntimePolicy
from serving.config_reference import reference

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_configuration_reference_is_the_one_of_the_code() -> None:
    assert reference() in README, "run `forecache config` and put its table into the README"


def test_every_config_file_is_listed_and_there() -> None:
    listed = set(re.findall(r"\]\((configs/[^)]+)\)", README))
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*.yaml")}
    assert listed <= there
    assert listed >= {path for path in there if not path.startswith("configs/bench/")}


def test_the_two_commands_stand_there_as_single_lines() -> None:
    assert "\npip install -e '.[test]' && serve run configs/laptop.yaml\n" in README
    assert "\npip install -e '.[test]' && pytest\n" in README


def test_the_runtime_policy_that_is_shown_is_one() -> None:
    (shown,) = [block for block in README.split("```python")[1:] if "RuntimePolicy" in block.split("```")[0]]
    code = shown.split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 35
    names: dict[str, object] = {}
    exec(compile(code, "README", "exec"), names)
    policy = names["NightlyReports"]
    assert isinstance(policy, type)
    assert issubclass(policy, RuntimePolicy)
    assert_it_acts(policy())


def assert_it_acts(policy: RuntimePolicy) -> None:
    cluster, engine = Cluster(), MadeUpEngine()
    event = began("w", "reporter")
    state = cluster.hear(engine.report(event, began("v", "coder")), 1.0)
    policy.observe(event, state)
    draft = Draft(tables={"w": {"reporter": 8}, "v": {"coder": 8}})
    policy.act(list(cluster.workflows.values()), state, cluster, draft)
    assert draft.priorities == {"w": 0}
    assert draft.tables == {"w": {"reporter": 2}, "v": {"coder": 8}}
