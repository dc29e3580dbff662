"""A predictor trained on workflows of the kind that a suite plays, none of them played: what `-trained` begins with."""

from __future__ import annotations

import hashlib
from pathlib import Path

from serving.benchmark.driver.suite import Suite, WorkloadConfig
from serving.benchmark.learned_forecasts import traces_of

WORKLOADS = 10
# Beyond those of rounds, of teaching and of warming up.
FIRST_SEED = 100


def taught(suite: Suite, workload: WorkloadConfig, folder: Path) -> Path:
    """The folder of its checkpoint; trained now, some seconds, unless it is there."""
    name = hashlib.sha256(workload.described().encode()).hexdigest()[:12]
    checkpoint = folder / f"predictor-{name}"
    if checkpoint.exists():
        return checkpoint
    from predictor_actor.checkpoint import save_checkpoint
    from predictor_actor.train import train

    first = suite.teaching_seed() + FIRST_SEED
    workflows = [one for number in range(WORKLOADS) for one in workload.make(first + number).workflows]
    save_checkpoint(train(traces_of(workflows)).predictor, checkpoint)
    return checkpoint
