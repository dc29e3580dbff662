"""Starts a training in a process of its own, and ends it: by itself, by its time limit, or with the replica."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from predictor_actor.base import WorkflowTrace
from predictor_actor.checkpoint import CheckpointError, load_checkpoint
from predictor_actor.graphsage import GraphSage
from predictor_actor.traces import TraceWriter

# Beyond its own limit a training may finish its epoch, calibrate and save; then it is killed.
_GRACE_S = 120.0
_LAST_WORDS = 500


class TrainingFailedError(RuntimeError):
    """A training has ended without a model; says why."""


class TrainingProcess:
    """At most one training at a time. `train` blocks and is for a thread; `kill` may be called from any other.

    Args:
        max_s: seconds of wall clock after which no epoch begins.
        threads: compute threads.
    """

    def __init__(self, max_s: float, threads: int) -> None:
        self._max_s = max_s
        self._threads = threads
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def train(self, traces: Sequence[WorkflowTrace]) -> GraphSage:
        """The model that was trained on the traces.

        Raises:
            TrainingFailedError: there is none.
        """
        try:
            with tempfile.TemporaryDirectory(prefix="forecache-train-") as name:
                return self._train(Path(name), traces)
        except OSError as error:
            raise TrainingFailedError(f"{type(error).__name__}: {error}") from error

    def kill(self) -> None:
        """Ends the training that runs, if any, and lets no other begin."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def _train(self, folder: Path, traces: Sequence[WorkflowTrace]) -> GraphSage:
        with TraceWriter(folder / "traces", "window", max_folder_bytes=None) as writer:
            for trace in traces:
                writer.write(trace)
        said = folder / "said"
        with said.open("wb") as errors:
            process = self._start(folder, errors.fileno())
            try:
                code = process.wait(timeout=self._max_s + _GRACE_S)
            except subprocess.TimeoutExpired:
                raise TrainingFailedError(
                    f"it has not ended {_GRACE_S:g} s after its limit, {self._max_s:g} s"
                ) from None
            finally:
                process.kill()
                process.wait()
        if code:
            raise TrainingFailedError(f"exit code {code}: {said.read_text(errors='replace')[-_LAST_WORDS:].strip()}")
        try:
            return load_checkpoint(folder / "model")
        except CheckpointError as error:
            raise TrainingFailedError(str(error)) from error

    def _start(self, folder: Path, errors: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "ignore", "-m", "predictor_actor.retrain"]
        command += [str(folder / "traces"), str(folder / "model")]
        command += ["--max-s", str(self._max_s), "--threads", str(self._threads)]
        # Where this process finds its modules, which a runtime environment of Ray may have changed.
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(self._threads)}
        with self._lock:
            if self._killed:
                raise TrainingFailedError("the replica stops")
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment
            )
        return self._process
