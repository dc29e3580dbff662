"""What a scheduler's time and tokens add up to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serving.sglang_plugin.meter import Meter

STEPS = st.lists(st.tuples(st.sampled_from(["begins", "ends", "idles"]), st.floats(0, 10), st.booleans()), max_size=40)


class TestTime:
    def test_one_batch_after_the_other(self) -> None:
        meter = Meter()
        meter.begins(1.0)
        meter.ends(3.0, prefill=True, computed=100, output=1)
        meter.begins(3.5)  # half a second of scheduling belongs to the batch that comes of it
        meter.ends(4.0, prefill=False, computed=0, output=2)
        assert (meter.prefill_s, meter.busy_s) == (2.0, 3.0)
        assert (meter.computed, meter.output) == (100, 3)

    def test_batches_that_overlap_are_each_counted_to_their_ends(self) -> None:
        meter = Meter()
        meter.begins(1.0)
        meter.begins(1.2)  # a prefill runs, a decode waits behind it
        meter.ends(3.0, prefill=True, computed=100, output=1)
        meter.begins(3.1)
        meter.ends(3.5, prefill=False, computed=0, output=1)
        meter.ends(4.0, prefill=False, computed=0, output=1)
        assert (meter.prefill_s, meter.busy_s) == (2.0, 3.0)

    def test_idle_time_is_nobodys(self) -> None:
        meter = Meter()
        meter.begins(1.0)
        meter.ends(2.0, prefill=True, computed=1, output=1)
        meter.idles()
        meter.begins(50.0)
        meter.ends(51.0, prefill=True, computed=1, output=1)
        assert meter.busy_s == 2.0

    @given(STEPS)
    def test_sums_only_grow_and_never_beyond_the_time_that_has_passed(
        self, steps: list[tuple[str, float, bool]]
    ) -> None:
        meter, now = Meter(), 0.0
        for what, seconds, prefill in steps:
            before = meter.prefill_s, meter.busy_s, meter.computed, meter.output
            now += seconds
            match what:
                case "begins":
                    meter.begins(now)
                case "ends":
                    meter.ends(now, prefill, 5 if prefill else 0, 1)
                case _:
                    meter.idles()
            after = meter.prefill_s, meter.busy_s, meter.computed, meter.output
            assert all(new >= old for old, new in zip(before, after, strict=True))
            assert meter.prefill_s <= meter.busy_s <= now * (1 + 1e-9)
