"""Tests that the yardstick's work is fixed, because thresholds of other benchmarks refer to it."""

from bench.python_yardstick import QUEUE_LENGTH, Yardstick


def test_yardstick_does_the_same_work_in_every_run() -> None:
    totals: list[int] = []
    for _ in range(2):
        yardstick = Yardstick()
        assert yardstick.run_rounds(QUEUE_LENGTH) > 0
        totals.append(yardstick.total)

    assert totals[0] == totals[1]


def test_yardstick_work_has_not_changed() -> None:
    """A change here also changes `OVER_YARDSTICK_MIN` in scheduler_speed.py and cell_speed.py. Measure both again."""
    yardstick = Yardstick()
    yardstick.run_rounds(100)

    assert yardstick.total == 64_750
