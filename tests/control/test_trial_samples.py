"""Good requests in the blocks of a setting trial."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headgate.control.trials.samples import BlockSamples, BlockSchedule, BlockTally, ClassTally, OpenCount
from headgate.core.commands import Command, End
from headgate.core.events import Event, PolicyChanged, TimerFired
from headgate.model.money import Bill, BillCause, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.overrides import SetSetting
from headgate.model.policy import Policy
from headgate.model.units import Duration
from testing.builders import a_class, a_policy, arrived, at, completed, dispatch, duration, end, first_token

SETTING = "headroom.kv_percent"
TARGETS = replace(a_class("interactive"), ttft_ns=duration(1), tpot_ns=duration(0.1), e2e_ns=duration(20))
POLICY = replace(a_policy(), classes=(TARGETS, a_class("batch")))
SCHEDULE = BlockSchedule(SETTING, 80, at(100), duration(30), duration(8), frozenset({1}), 4)
LONG_AGO = duration(120)


def policy_at(value: int, until: float) -> Policy:
    other = SetSetting("headroom.long_lane_percent", 50, 80, at(500))
    return replace(POLICY, overrides=(other, SetSetting(SETTING, 95, value, at(until))))


class Watched:
    """Samples of a trial whose blocks begin at 100 s and last 30 s, with a guard period of 8 s."""

    def __init__(self, *moments: tuple[float, Event, Sequence[Command]], open_max: int = 10) -> None:
        self.samples = BlockSamples(open_max=open_max)
        self.samples.observe(PolicyChanged(POLICY, "h"), [], at(0))
        self.samples.watch(SCHEDULE)
        self.see(*moments)

    def see(self, *moments: tuple[float, Event, Sequence[Command]]) -> None:
        for moment, event, commands in moments:
            self.samples.observe(event, commands, at(moment))

    def tally(self, number: int = 0, name: str = "interactive") -> tuple[int, int]:
        found = self.samples.blocks[number].classes.get(name, ClassTally())
        return found.good, found.bad


def over(
    outcome: Outcome = Outcome.COMPLETED, request: str = "r", *bills: Bill, name: str | None = "interactive"
) -> End:
    return replace(end(request, outcome, attempts=1), bills=bills, service_class=name)


def stream(
    begins: float, *, ttft: float = 0.5, lasts: float = 1, tokens: int = 21, request: str = "r"
) -> tuple[tuple[float, Event, Sequence[Command]], ...]:
    return (
        (begins, arrived(request), [dispatch(request)]),
        (begins + ttft, first_token(request), []),
        (begins + ttft + lasts, completed(request, tokens=tokens), [over(request=request)]),
    )


def test_request_counts_for_the_block_in_which_it_arrived() -> None:
    watched = Watched(*stream(108), *stream(129.9, request="s"))

    assert watched.tally() == (2, 0)
    assert list(watched.samples.blocks) == [0]


@pytest.mark.parametrize("moment", [90, 100, 107.9, 130, 220, 250])
def test_requests_outside_of_blocks_and_in_guard_periods_are_left_out(moment: float) -> None:
    assert Watched(*stream(moment)).samples.blocks == {}


@pytest.mark.parametrize(
    ("story", "good"),
    [
        (stream(110, ttft=1.1), 0),
        (stream(110, lasts=2.1), 0),
        (stream(110, lasts=2.1, tokens=1), 1),
        (stream(110, lasts=19.6, tokens=900), 0),
        (stream(110, lasts=19.4, tokens=900), 1),
    ],
)
def test_request_is_good_if_it_meets_all_targets(
    story: Sequence[tuple[float, Event, Sequence[Command]]], good: int
) -> None:
    assert Watched(*story).tally() == (good, 1 - good)


def test_whole_response_has_no_ttft() -> None:
    whole = (110, arrived("r", stream=False), [dispatch("r")]), (115, completed("r"), [over()])

    assert Watched(*whole).tally() == (1, 0)


def test_first_token_reported_with_the_end_counts() -> None:
    story = (110, arrived("r"), [dispatch("r")]), (112, completed("r", first_token=True), [over()])

    assert Watched(*story).tally() == (0, 1)


@pytest.mark.parametrize(
    ("outcome", "bad"),
    [
        (Outcome.SHED, 1),
        (Outcome.QUEUE_FULL, 1),
        (Outcome.ENGINE_ERROR, 1),
        (Outcome.RATE_LIMITED, 0),
        (Outcome.INVALID_REQUEST, 0),
        (Outcome.CANCELLED, 0),
    ],
)
def test_faults_of_callers_are_left_out(outcome: Outcome, bad: int) -> None:
    watched = Watched((110, arrived("r"), [over(outcome, name=None)]))

    assert watched.tally() == (0, bad)
    assert watched.samples.blocks[0].open == 0


def test_caller_that_leaves_after_the_target_is_a_missed_target() -> None:
    watched = Watched((110, arrived("r"), []), (112, TimerFired(), [over(Outcome.CANCELLED)]))

    assert watched.tally() == (0, 1)


def test_request_of_no_known_class_is_left_out() -> None:
    watched = Watched((110, arrived("r", model="gone"), [over(Outcome.MODEL_NOT_FOUND, name=None)]))
    watched.see((111, arrived("s", model="gone"), []))

    assert watched.samples.blocks[0].classes == {}
    assert watched.samples.open_requests(watched.samples.blocks[0], at(120)) == {}
    assert watched.samples.settled(at(300), LONG_AGO)[0].classes == {}


def test_costs_add_up_per_block() -> None:
    bill = Bill(1, BillCause.ANSWER, *(Duration(0),) * 3, NanoUsd(3), NanoUsd(4), NanoUsd(5))
    watched = Watched(
        (110, arrived("r"), [dispatch("r")]), (110.5, completed("r"), [over(Outcome.COMPLETED, "r", bill)])
    )
    block = watched.samples.blocks[0]

    assert block.cost_nano_usd == 12
    assert block.log_good() == 0
    assert block.log_good_per_cost() == pytest.approx(-math.log(12))


def test_empty_block_has_no_measurements() -> None:
    block = BlockTally(0, False, at(0))

    assert (block.share("chat", 1), block.log_good(), block.log_good_per_cost()) == (None, None, None)


def test_past_blocks_without_requests_are_settled() -> None:
    watched = Watched(*stream(108))
    settled = watched.samples.settled(at(165), LONG_AGO)

    assert list(settled) == [0, 1]
    assert (settled[1].has_new_value, settled[1].classes) == (True, {})
    assert list(watched.samples.settled(at(900), LONG_AGO)) == [0, 1, 2, 3]


def test_blocks_settle_when_their_requests_have_ended() -> None:
    watched = Watched((110, arrived("r"), [dispatch("r")]))
    assert watched.samples.settled(at(131), LONG_AGO) == {}
    watched.see((132, TimerFired(), [over(Outcome.ENGINE_ERROR)]))

    assert list(watched.samples.settled(at(133), LONG_AGO)) == [0]
    assert watched.tally() == (0, 1)


def test_requests_that_stay_open_count_by_what_is_known() -> None:
    """A stream without `e2e` that began in time is good, and one that has no token is not. Others are left out."""
    watched = Watched(
        (110, arrived("late"), []),
        (110, arrived("began", service_class="batch"), [replace(dispatch("began"), service_class="batch")]),
        (111, first_token("began"), []),
        (
            110,
            arrived("whole", service_class="batch", stream=False),
            [replace(dispatch("whole"), service_class="batch")],
        ),
    )
    block = watched.samples.settled(at(250), LONG_AGO)[0]

    assert (watched.tally(), watched.tally(name="batch"), block.open) == ((0, 1), (1, 0), 0)
    watched.see((260, TimerFired(), [over(request="late")]))
    assert watched.tally() == (0, 1)


def test_open_requests_that_have_missed_a_target_are_known() -> None:
    watched = Watched((110, arrived("a"), []), (111, arrived("b"), []), (145, arrived("c"), []))

    assert watched.samples.open_requests(watched.samples.blocks[0], at(111.5)) == {"interactive": OpenCount(2, 1)}
    assert watched.samples.open_requests(watched.samples.blocks[1], at(145.5)) == {"interactive": OpenCount(1, 0)}


@pytest.mark.parametrize(
    ("moment", "policy", "wrong"),
    [
        (145, policy_at(80, 160), False),
        (145, policy_at(80, 140), True),
        (145, policy_at(95, 160), True),
        (110, policy_at(80, 160), True),
        (110, policy_at(95, 160), False),
        (110, POLICY, False),
    ],
)
def test_block_whose_value_is_not_in_force_is_marked(moment: float, policy: Policy, wrong: bool) -> None:
    watched = Watched((100, PolicyChanged(policy, "h"), []), (moment, arrived("r"), []))
    [block] = watched.samples.blocks.values()

    assert block.wrong_value is wrong


def test_policy_that_was_in_force_before_the_trial_counts() -> None:
    samples = BlockSamples()
    samples.observe(arrived("before"), [], at(1))
    samples.watch(SCHEDULE)
    samples.observe(PolicyChanged(policy_at(80, 160), "h"), [], at(99))
    samples.watch(SCHEDULE)
    samples.observe(arrived("r"), [], at(145))

    assert not samples.blocks[1].wrong_value


def test_number_of_open_requests_is_bounded() -> None:
    watched = Watched((110, arrived("a"), []), (110, arrived("b"), []), open_max=1)

    assert watched.samples.blocks[0].open == 1


def test_nothing_is_measured_after_the_trial() -> None:
    watched = Watched((110, arrived("a"), []))
    watched.samples.stop()
    watched.see((111, arrived("b"), []), (112, TimerFired(), [over(request="a")]))

    assert watched.samples.blocks[0].open == 1
    assert watched.tally() == (0, 0)


def test_request_without_a_policy_has_no_class() -> None:
    samples = BlockSamples()
    samples.watch(SCHEDULE)
    samples.observe(arrived("r"), [dispatch("r")], at(110))

    assert samples.open_requests(samples.blocks[0], at(120)) == {}
