"""`forecache bench run` as a user runs it: on a real engine of its own, until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from running_server import ENGINE, RANDOM_MODEL, eventually, is_alive, leftovers, shared_memory

from serving.benchmark.records import CallRecord, Records, read_records

POLICIES = ["lru", "lookahead-oracle+prefetch"]
SUITE = {
    "name": "tiny",
    "app": {"model": RANDOM_MODEL, "engine": ENGINE | {"max_total_tokens": 1500}},
    "workload": {"name": "hover", "workflows": 3, "tool_s": 0.1, "scale": 0.15},
    "arrivals": {"lanes": 3},
    "rounds": 1000,
    "policies": POLICIES,
}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, on its way; with what it has started it is gone at the end."""
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(SUITE))
    running = subprocess.Popen(
        [Path(sys.executable).parent / "forecache", "bench", "run", "suite.yaml", "--out", "out", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [psutil.Process(running.pid)]
    try:
        yield running
    finally:
        for process in [*family[0].children(recursive=True), *family] if family and is_alive(family[0]) else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def finished(folder: Path) -> Records | None:
    """The records, once every policy has finished a round."""
    file = folder / "out" / "records.jsonl"
    records = read_records(file) if file.exists() else None
    return records if records and len(records.rounds) >= len(POLICIES) else None


@pytest.mark.timeout(300)
def test_rounds_are_recorded_and_ctrl_c_keeps_those_that_had_finished(
    bench: subprocess.Popen[str], tmp_path: Path
) -> None:
    before = shared_memory()
    eventually(lambda: finished(tmp_path) or bench.poll() is not None, "a round of each policy", 240, 0.5)
    assert bench.poll() is None, bench.communicate()
    processes = psutil.Process(bench.pid).children(recursive=True)
    os.kill(bench.pid, signal.SIGINT)
    out, err = bench.communicate(timeout=60)
    assert bench.returncode == 130, err
    results = json.loads(out)
    assert not results["complete"]
    (point,) = results["points"]
    assert set(point["policies"]) == set(POLICIES)
    assert (tmp_path / "out" / "index.html").exists()
    eventually(lambda: not leftovers(processes, before), f"nothing left: {leftovers(processes, before)}", 30)

    records = finished(tmp_path)
    assert records is not None
    for record, calls in records.rounds.values():
        assert {call.error for call in calls} == {None}
        for name in ("hit_device", "hit_host"):  # what the engine counted is what its answers said
            assert record.counters[name] == sum(getattr(call, name) for call in calls)
        assert record.counters["prompt"] == sum(call.prompt_tokens for call in calls)
        assert record.timeline
    assert point["policies"]["lookahead-oracle+prefetch"]["hit_share"] > point["policies"]["lru"]["hit_share"]
    prompts = [[call.prompt_tokens for call in sorted_calls(records, policy)] for policy in POLICIES]
    assert prompts[0] == prompts[1]


def sorted_calls(records: Records, policy: str) -> list[CallRecord]:
    _, calls = records.of(next(iter(records.points)), policy)[0]
    return sorted(calls, key=lambda call: (call.workflow, call.index))
