"""PredictorReplica: the Serve deployment that forecasts. A shell: messages in, `Learning`, messages out."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ray import serve
from ray.util import get_node_ip_address

from predictor_actor.base import WorkflowTrace
from predictor_actor.checkpoint import CheckpointError, load_checkpoint
from predictor_actor.kept import Kept
from predictor_actor.learning import Learning, LearningConfig
from predictor_actor.requests import MAX_BYTES, Answer, Request, decode_request, encode_answer
from predictor_actor.training_process import TrainingFailedError, TrainingProcess
from serving.garbage import collect_seldom
from serving.link import Address, LinkServer
from serving.logs import log_through_serve

logger = logging.getLogger("forecache")

# How often it looks whether a training is due.
_PERIOD_S = 1.0
# What is left to requests between two steps of judging: at least so long, and so many times as long as a step took.
_BREATH_S = 0.02
_BREATHS = 4


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """How a replica works.

    Attributes:
        checkpoint: folder of the model that it starts with; empty: the one it kept, if any.
        folder: where workflows that have ended and the serving model are kept; empty: nowhere.
        learn: whether models are trained while serving.
        retrain_max_s, retrain_threads: limits of such a training.
        max_batch_size: requests that are answered together.
        batch_wait_s: how long the first of them waits for others.
    """

    checkpoint: str = ""
    folder: str = ""
    learn: bool = True
    retrain_max_s: float = 120.0
    retrain_threads: int = 1
    max_batch_size: int = 64
    batch_wait_s: float = 0.002


class PredictorReplica:
    """Answers requests in batches with one forward pass, learns from them, and trains in another process.

    With several replicas each learns from the requests that it is given.
    """

    def __init__(self, settings: PredictorSettings) -> None:
        log_through_serve()
        # One thread forecasts fastest: the model is small, and engines need the others.
        torch.set_num_threads(1)
        self._settings = settings
        self._learning = Learning(now=time.time())
        self._kept = Kept(Path(settings.folder) if settings.folder else None)
        self._training = TrainingProcess(settings.retrain_max_s, settings.retrain_threads)
        self._refused = ""
        self._start()
        self._answer.set_max_batch_size(settings.max_batch_size)
        self._answer.set_batch_wait_timeout_s(settings.batch_wait_s)
        self._unwritten: list[WorkflowTrace] = []  # not yet on disk
        self._news = asyncio.Event()
        self._link = LinkServer(self.forecast, get_node_ip_address(), MAX_BYTES)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self._judge(), collect_seldom())]
        if settings.learn:
            self._tasks.append(loop.create_task(self._train()))

    async def address(self) -> Address:
        """Where requests may be brought to directly, as questions whose answers are those of `forecast`."""
        return self._link.address

    async def forecast(self, data: bytes) -> bytes:
        """An encoded `Answer` to an encoded `Request`.

        Raises:
            RequestError: it is malformed; others in its batch are answered.
        """
        arrived = time.monotonic()
        answer: bytes = await self._answer((decode_request(data), arrived))
        return answer

    @serve.batch
    async def _answer(self, batch: list[tuple[Request, float]]) -> list[bytes]:
        learning = self._learning
        for request, _ in batch:
            learning.introduce(request.facts)
            learning.ended(request.ended)
            learning.observe(request.begun)
        asked_for = [[*request.begun, *request.asked] for request, _ in batch]
        forecasts = learning.forecast([prefix for prefixes in asked_for for prefix in prefixes])
        made_at, now = time.time(), time.monotonic()
        answers, row = [], 0
        for prefixes, (_, arrived) in zip(asked_for, batch, strict=True):
            part = forecasts.rows(row, row + len(prefixes))
            row += len(prefixes)
            answers.append(encode_answer(Answer(part, made_at, now - arrived)))
        ended = [trace for request, _ in batch for trace in request.ended]
        if ended:
            self._unwritten += ended
            self._news.set()
        return answers

    async def status(self) -> dict[str, Any]:
        """Which model serves, since when and why, how good each candidate was lately, the latest training."""
        own = {"refused": self._refused, "pid": os.getpid(), "link": dict(self._link.counts)}
        return self._learning.status() | own

    async def load(self, folder: str) -> dict[str, Any]:
        """Serves the checkpoint in a folder of this machine from now on, or says why not and changes nothing."""
        reason = ""
        try:
            model = await asyncio.to_thread(load_checkpoint, Path(folder))
            self._learning.load(model, f"loaded from {folder}", time.time())
        except CheckpointError as error:
            reason = self._refused = str(error)
            logger.warning("forecache: a predictor was refused: %s", error)
        return {"loaded": not reason, "reason": reason, "model": self._learning.status()["model"]}

    async def check_health(self) -> None:
        if not self._link.is_open:
            raise RuntimeError("the predictor takes no requests any more")

    def __del__(self) -> None:
        """Ray Serve calls this when the replica stops, before it kills the actor."""
        if hasattr(self, "_link"):
            self._link.close()
        self._training.kill()
        for task in getattr(self, "_tasks", ()):
            task.cancel()
        self._kept.write(getattr(self, "_unwritten", ()))
        self._kept.close()

    def _start(self) -> None:
        """Goes on from a checkpoint and from the workflows that were kept."""
        settings, now = self._settings, time.time()
        if settings.checkpoint:
            try:
                model = load_checkpoint(Path(settings.checkpoint))
                self._learning.load(model, f"loaded from {settings.checkpoint}", now)
            except CheckpointError as error:
                self._refused = str(error)
                logger.error("forecache: a predictor was refused: %s", error)
        if self._learning.model is None and (kept := self._kept.load()) is not None:
            self._learning.load(kept, "it served before the restart", now)
        self._learning.replay(self._kept.recent(LearningConfig().max_traces))

    async def _judge(self) -> None:
        """Keeps and judges workflows as they end, a few at a time, between requests."""
        while True:
            await self._news.wait()
            self._news.clear()
            unwritten, self._unwritten = self._unwritten, []
            await asyncio.to_thread(self._kept.write, unwritten)
            while True:
                before, begin = self._learning.model, time.monotonic()
                try:
                    more = self._learning.judge(time.time())
                except Exception:  # a fault in judging must not stop serving
                    logger.exception("forecache: workflows could not be judged")
                    break
                if self._learning.model is not before:
                    logger.info("forecache: %s", self._told())
                    await asyncio.to_thread(self._kept.save, self._learning.model)
                if not more:
                    break
                await asyncio.sleep(max(_BREATH_S, _BREATHS * (time.monotonic() - begin)))

    async def _train(self) -> None:
        """Trains when it is due."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            traces = self._learning.due(time.time())
            if traces is None:
                continue
            self._learning.began()
            start = time.monotonic()
            try:
                model = await asyncio.to_thread(self._training.train, traces)
                self._learning.admit(model, len(traces), time.monotonic() - start, time.time())
            except Exception as error:  # whatever it was, serving goes on and it is tried again
                reason = str(error) if isinstance(error, TrainingFailedError) else f"{type(error).__name__}: {error}"
                self._learning.failed(reason, len(traces), time.monotonic() - start, time.time())
                logger.warning("forecache: a predictor could not be trained: %s", reason)

    def _told(self) -> str:
        status = self._learning.status()
        return f"{status['model']} forecasts now: {status['why']}"
