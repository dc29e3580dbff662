"""What a replica keeps on disk for the next one: workflows that have ended, and the model that serves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from predictor_actor.base import WorkflowTrace
from predictor_actor.checkpoint import REST, CheckpointError, load_checkpoint, save_checkpoint
from predictor_actor.graphsage import GraphSage
from predictor_actor.trace_reader import SUFFIX, files_in
from predictor_actor.traces import TraceError, TraceWriter, read_traces

logger = logging.getLogger("forecache")

# Of the newest files, as many as have no more bytes than this are read at the start.
_READ_BYTES = 1 << 26
_FILE_BYTES = 1 << 23


class Kept:
    """Trace files and the folder `checkpoint` beside them. Safe to lose and to share; whatever fails is logged.

    Args:
        folder: None: nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._writer = None if folder is None else TraceWriter(folder, "predictor", max_file_bytes=_FILE_BYTES)
        self._failing = False

    def write(self, traces: Sequence[WorkflowTrace]) -> None:
        """Appends workflows that have ended."""
        if self._writer is None:
            return
        try:
            for trace in traces:
                self._writer.write(trace)
            self._failing = False
        except OSError as error:
            if not self._failing:  # once for a disk that is full, not for each workflow
                logger.warning("forecache: cannot keep workflows in %s: %s", self._folder, error)
            self._failing = True

    def recent(self, most: int) -> list[WorkflowTrace]:
        """The latest workflows, the oldest first."""
        if self._folder is None or not self._folder.is_dir():
            return []
        try:
            files = sorted(files_in(self._folder, (SUFFIX,)), key=lambda file: file[0].stat().st_mtime_ns, reverse=True)
            newest: list[Path] = []
            size = 0
            for path, length in files:
                size += length
                if newest and size > _READ_BYTES:
                    break
                newest.append(path)
            traces = [trace for path in reversed(newest) for trace in read_traces([path]).traces]
        except (OSError, TraceError) as error:
            logger.warning("forecache: cannot read the workflows in %s (%s); starting without", self._folder, error)
            return []
        return traces[-most:]

    def save(self, model: GraphSage | None) -> None:
        """Keeps the model that serves now; None: a chain does, and what was kept goes."""
        if self._folder is None:
            return
        folder = self._folder / "checkpoint"
        try:
            if model is None:
                (folder / REST).unlink(missing_ok=True)
            else:
                save_checkpoint(model, folder)
        except OSError as error:
            logger.warning("forecache: cannot keep the predictor in %s: %s", folder, error)

    def load(self) -> GraphSage | None:
        """The model that was kept; None if there is none that can be used."""
        if self._folder is None or not (self._folder / "checkpoint" / REST).exists():
            return None
        try:
            return load_checkpoint(self._folder / "checkpoint")
        except CheckpointError as error:
            logger.warning("forecache: starting without the predictor that was kept: %s", error)
            return None

    def close(self) -> None:
        """Closes the file that is written."""
        if self._writer is not None:
            self._writer.close()
