"""Fact checking over several hops, as HoVer sets it: one claim is one workflow."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import BaseModel, Field, ValidationError

from serving.benchmark.workloads.base import Segment, Workflow, Workload, WorkloadError
from serving.benchmark.workloads.draft import ANCHOR_FIRST, Draft, anchors_of, check_layout
from serving.benchmark.workloads.registry import check_number, check_whole, register

ROUNDS = range(2, 7)
# How often each number of hops occurs in HoVer's development set, in hundredths.
HOPS = {2: 28, 3: 46, 4: 26}
ANOTHER_ROUND = 0.35
PLAN_AGAIN = 0.3
SEARCH_AGAIN = 0.2
BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class _Claim:
    id: str
    tokens: int
    hops: int


class _Question(BaseModel):
    id: Annotated[str, Field(min_length=1)]
    claim: Annotated[str, Field(min_length=1)]
    hops: Annotated[int, Field(ge=1)]


@register("hover")
def hover(
    seed: int,
    *,
    workflows: int = 32,
    layout: str = ANCHOR_FIRST,
    scale: float = 1.0,
    tool_s: float = 2.0,
    anchor_tokens: int = 600,
    output_scale: float = 1.0,
    questions: str | None = None,
) -> Workload:
    """Four agents check a claim in two to six rounds, and the prompts grow by about a thousand tokens a round.

    A round: the decomposer plans (always in the first round, later with probability .3), the retriever searches
    (`tool_s` seconds) once or, with probability .2, twice, the reader takes notes, the judge decides. There are as
    many rounds as the claim has hops, at least two, and one more with probability .35, again and again, six at most.
    All agents see the whole context.

    Args:
        questions: a JSONL file of claims, `{"id", "claim", "hops"}` in each line; the seed chooses which. Only a
            claim's length (a token for 4 bytes) and its hops are used, no text. Without it, claims are made up.
        scale: multiplies all lengths.
        output_scale: multiplies what agents write; below 1 for agents that answer in a few words.

    Raises:
        WorkloadError: a value out of range, a file that cannot be read, or more workflows than it has claims.
    """
    check_whole("hover", "workflows", workflows)
    check_whole("hover", "anchor_tokens", anchor_tokens)
    check_number("hover", "tool_s", tool_s)
    check_number("hover", "output_scale", output_scale)
    check_layout("hover", layout)
    anchors = anchors_of("hover", dict.fromkeys(("decomposer", "retriever", "reader", "judge"), anchor_tokens))
    claims = _made_up(seed, workflows) if questions is None else _from_file(Path(questions), seed, workflows)
    written = (
        _check(
            Draft(f"hover-{seed}-{number}", anchors, layout),
            claim,
            tool_s,
            output_scale,
            random.Random(f"hover/{seed}/{number}"),
        )
        for number, claim in enumerate(claims)
    )
    return Workload("hover", tuple(written)).scaled(scale)


def _check(draft: Draft, claim: _Claim, tool_s: float, output_scale: float, dice: random.Random) -> Workflow:
    def output(least: int, most: int) -> int:
        return max(1, round(output_scale * dice.randint(least, most)))

    draft.share(Segment(claim.id, claim.tokens))
    rounds = max(claim.hops, ROUNDS.start)
    while rounds < ROUNDS.stop - 1 and dice.random() < ANOTHER_ROUND:
        rounds += 1
    for number in range(min(rounds, ROUNDS.stop - 1)):
        if number == 0 or dice.random() < PLAN_AGAIN:
            draft.call("decomposer", output(60, 120))
        searches = 2 if dice.random() < SEARCH_AGAIN else 1
        for _ in range(searches):
            draft.call("retriever", output(20, 50), pause_s=tool_s, tool="search")
            draft.add("documents", dice.randint(600, 900) // searches)
        draft.call("reader", output(90, 180))
        draft.call("judge", output(20, 60))
    return draft.workflow()


def _made_up(seed: int, count: int) -> list[_Claim]:
    dice = random.Random(f"hover/{seed}/claims")
    hops = list(HOPS)
    weights = list(HOPS.values())
    return [
        _Claim(f"hover-{seed}/claim-{number}", dice.randint(15, 60), dice.choices(hops, weights)[0])
        for number in range(count)
    ]


def _from_file(path: Path, seed: int, count: int) -> list[_Claim]:
    claims = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    claims.append(_claim(line, f"{path}, line {number}"))
    except OSError as error:
        raise WorkloadError(f"questions: cannot read {path}: {error.strerror}") from error
    if count > len(claims):
        raise WorkloadError(f"questions: {path} has {len(claims)} claims, and {count} workflows are asked for")
    random.Random(f"hover/{seed}/choice").shuffle(claims)
    return claims[:count]


def _claim(line: bytes, where: str) -> _Claim:
    try:
        question = _Question.model_validate(orjson.loads(line))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the line"
        raise WorkloadError(f"{where}: {field}: {first['msg']}; a line has id, claim and hops") from error
    except orjson.JSONDecodeError as error:
        raise WorkloadError(f"{where} is not JSON: {error}") from error
    length = max(1, len(question.claim.encode()) // BYTES_PER_TOKEN)
    return _Claim(f"hover/claim/{question.id}", length, question.hops)
