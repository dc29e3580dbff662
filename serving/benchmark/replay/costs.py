"""What an engine's steps cost, from a calibration file: measured, or worked out from the figures of a data sheet."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path

_FOLDER = "calibrations"


class CalibrationError(ValueError):
    """There is no such calibration, or it is none; the message lists those that exist."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of an engine's steps.

    A prefill of pieces with n new tokens after c others takes `prefill_s + prefill_token_s * sum(n)
    + prefill_pair_s * sum(n * (c + n / 2)) + prefill_prefix_pair_s * sum(c * c / 2)`; a decode step of b calls with
    contexts of c tokens takes `decode_s + decode_call_s * b + decode_context_s * sum(c)`.

    Attributes:
        prefill_prefix_pair_s: of two tokens before, 0 where attention is computed for new tokens alone. SGLang's
            `torch_native` computes it for the whole prompt and leaves out what it knows, so a hit saves less there.
        plan_s: what the engine loses to a plan that comes while it works: much of the processor time of a plan's way,
            if that runs on the cores that also run the model, and about nothing if it does not.
        link_tokens_per_s: what moves from the host to the device in a second.
        call_s: what a call costs outside the engine's steps (HTTP, tokenizer): half of it before, in the one process
            that takes calls in, and half after.
        source: where the figures are from.
    """

    name: str
    prefill_s: float
    prefill_token_s: float
    prefill_pair_s: float
    prefill_prefix_pair_s: float
    decode_s: float
    decode_call_s: float
    decode_context_s: float
    link_tokens_per_s: float
    call_s: float
    plan_s: float
    source: str

    def prefill(self, pieces: Iterable[tuple[int, int]]) -> float:
        """Seconds of one prefill step; `pieces` are (new tokens, tokens before them)."""
        seconds = self.prefill_s
        for new, before in pieces:
            seconds += self.prefill_token_s * new + self.prefill_pair_s * new * (before + new / 2)
            seconds += self.prefill_prefix_pair_s * before * before / 2
        return seconds

    def decode(self, calls: int, context_tokens: int) -> float:
        """Seconds of one decode step."""
        return self.decode_s + self.decode_call_s * calls + self.decode_context_s * context_tokens

    def write(self, path: Path) -> None:
        """As a calibration file."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def calibration_names() -> list[str]:
    """The calibrations that come with Forecache: measured ones, and those of `roofline`."""
    from serving.benchmark.replay.roofline import ENGINES

    measured = (file.name.removesuffix(".json") for file in _packaged().iterdir() if file.name.endswith(".json"))
    return sorted([*measured, *ENGINES])


def load_costs(name: str) -> Costs:
    """A calibration by its name or the path of its file.

    Raises:
        CalibrationError: it does not exist or lacks a figure.
    """
    from serving.benchmark.replay.roofline import ENGINES, roofline

    if name in ENGINES:
        return roofline(name)
    packaged = _packaged() / f"{name}.json"
    path = Path(name)
    try:
        text = packaged.read_text() if packaged.is_file() else path.read_text()
        said = json.loads(text)
        return Costs(**{field.name: said[field.name] for field in fields(Costs)})
    except OSError:
        raise CalibrationError(
            f"no calibration {name!r}: give a file or one of {', '.join(calibration_names())}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CalibrationError(
            f"{name} is no calibration ({type(error).__name__}: {error}); write one with `forecache bench calibrate`"
        ) from None


def _packaged() -> resources.abc.Traversable:
    return resources.files("serving.benchmark") / _FOLDER
