"""A workload again and again: new work each time, with the same shared texts."""

from __future__ import annotations

import pytest

from serving.benchmark.workloads import Call, Segment, Workflow, Workload, WorkloadError
from serving.benchmark.workloads.repeat import repeated

ANCHOR = Segment("anchor", 50)


def workflow(name: str, parent: str | None = None) -> Workflow:
    task = Segment(f"{name}/task", 10)
    said = Segment(f"{name}/0/output", 5, output_of=0)
    return Workflow(name, (Call("a", (ANCHOR, task), 5, 1.0), Call("b", (ANCHOR, task, said), 7)), 3.0, parent)


PAIR = Workload("pair", (workflow("x"), workflow("y", parent="x")))


class TestRepeated:
    def test_once_is_the_workload_itself(self) -> None:
        assert repeated(PAIR, 1) == PAIR

    def test_every_repetition_is_new_work_of_the_same_lengths(self) -> None:
        made = repeated(PAIR, 3)
        assert made.workflows[:2] == PAIR.workflows
        assert len({one.id for one in made.workflows}) == 6
        for one, again in zip(PAIR.workflows * 3, made.workflows, strict=True):
            assert [(c.agent, c.prompt_tokens, c.output_tokens, c.pause_s) for c in one.calls] == [
                (c.agent, c.prompt_tokens, c.output_tokens, c.pause_s) for c in again.calls
            ]
        assert made.workflows[3].parent == made.workflows[2].id

    def test_shared_texts_stay_shared_and_others_do_not(self) -> None:
        once, thrice = PAIR.statistics(), repeated(PAIR, 3).statistics()
        assert thrice.distinct_tokens == 50 + 3 * (once.distinct_tokens - 50)
        assert thrice.live_footprint == once.live_footprint

    def test_an_output_stays_the_one_of_its_own_call(self) -> None:
        again = repeated(PAIR, 2).workflows[2]
        assert again.calls[1].prompt[2] == Segment("x/0/output, time 2", 5, 0)

    def test_repetitions_have_no_recorded_arrival(self) -> None:
        assert [one.arrival_s for one in repeated(PAIR, 2).workflows] == [3.0, 3.0, None, None]

    def test_less_than_once_is_refused(self) -> None:
        with pytest.raises(WorkloadError, match="repeat is 0"):
            repeated(PAIR, 0)
