"""`python -m predictor_actor.retrain TRACES OUT`: one training in a process of its own, which serving does not feel.

It is niced, and ends with the process that started it.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from predictor_actor.base import WorkflowTrace
from predictor_actor.checkpoint import save_checkpoint
from predictor_actor.model import ModelConfig
from predictor_actor.traces import TraceError, read_traces
from predictor_actor.train import TrainConfig, TrainError, train

_NICENESS = 19
_PARENT_PERIOD_S = 1.0


def text_size(traces: Sequence[WorkflowTrace]) -> int:
    """The length of the hidden states that most calls have; 0 if most have none."""
    sizes = Counter(len(call.hidden or b"") // 2 for trace in traces for call in trace.calls)
    return max(sizes, key=lambda size: (sizes[size], -size), default=0)


def main() -> None:
    """Trains on the traces in a folder and writes a checkpoint; exit code 1 if they cannot be trained on."""
    parser = argparse.ArgumentParser(prog="predictor_actor.retrain", description=__doc__)
    parser.add_argument("traces", type=Path, help="folder of trace files")
    parser.add_argument("out", type=Path, help="folder for the checkpoint")
    parser.add_argument("--max-s", type=float, required=True, help="seconds after which no epoch begins")
    parser.add_argument("--threads", type=int, default=1, help="compute threads")
    arguments = parser.parse_args()
    os.nice(_NICENESS)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        traces = read_traces([arguments.traces]).traces
        config = TrainConfig(ModelConfig(text_size=text_size(traces)), max_s=arguments.max_s, threads=arguments.threads)
        trained = train(traces, config)
        notes = {
            "traces": len(traces),
            "seconds": trained.seconds,
            "epochs": trained.epochs,
            "held_out_nll": trained.held_out_nll,
            "prior_nll": trained.prior_nll,
        }
        save_checkpoint(trained.predictor, arguments.out, notes)
    except (TraceError, TrainError, OSError) as error:
        sys.exit(f"error: {error}")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_PERIOD_S)
    os._exit(1)


if __name__ == "__main__":
    main()
