"""Tests for start tracking: phases, ages and measured cold starts."""

from headgate.core.autoscaling.starts import STUCK_NS, ColdStart, Start, StartPhase, Starts
from headgate.core.events import EndpointProbed, Event, TimerFired
from headgate.core.summary import EndpointSummary
from headgate.model.endpoint import EndpointProblem, EndpointState
from headgate.model.units import EndpointId, PoolName
from testing.builders import at, duration, joined, leaving, readied, unreadied

POOL = PoolName("p")


class Followed:
    """One pool's starts and its measured cold starts."""

    def __init__(self, *ready: str) -> None:
        self.starts = Starts()
        self.measured: list[ColdStart] = []
        for name in ready:
            self.tell(0, joined(name), readied(name))

    def tell(self, second: float, *events: Event) -> None:
        for event in events:
            if (cold_start := self.starts.observe(event, at(second))) is not None:
                self.measured.append(cold_start)

    def want(self, second: float, endpoints: int) -> None:
        self.starts.set_desired(POOL, endpoints, at(second))

    def phases(self) -> list[StartPhase]:
        return [start.phase for start in self.starts.in_progress()]

    def age_ns(self, second: float) -> int:
        return self.starts.age_ns(POOL, at(second))


def probed(name: str, trouble: EndpointProblem | None) -> EndpointProbed:
    return EndpointProbed(EndpointId(name), trouble)


def summary(name: str, state: EndpointState, *, leaves: bool = False) -> EndpointSummary:
    return EndpointSummary(EndpointId(name), POOL, state, leaves, in_flight=0, in_flight_max=1)


def test_cold_start_lasts_from_the_desired_count_increase_until_the_endpoint_is_ready() -> None:
    followed = Followed("a")
    followed.want(10, 1)
    followed.want(20, 2)
    followed.tell(80, joined("b"))
    assert followed.age_ns(100) == duration(80)

    followed.tell(140, readied("b"))
    assert followed.measured == [ColdStart(POOL, duration(120))]
    assert followed.starts.in_progress() == []
    assert followed.age_ns(150) == 0


def test_start_passes_through_all_observable_phases() -> None:
    followed = Followed("a")
    followed.want(0, 2)
    assert followed.starts.in_progress() == [Start(POOL, at(0), StartPhase.NOT_SCHEDULED, None)]

    followed.tell(10, joined("b"))
    assert followed.starts.in_progress() == [Start(POOL, at(0), StartPhase.STARTING, EndpointId("b"))]
    followed.tell(20, probed("b", EndpointProblem.CONNECTION_REFUSED))
    assert followed.phases() == [StartPhase.STARTING]
    followed.tell(30, probed("b", EndpointProblem.LOADING))
    assert followed.phases() == [StartPhase.LOADING]
    followed.tell(40, probed("b", None))
    assert followed.phases() == [StartPhase.WARMING]


def test_probing_a_ready_or_unknown_endpoint_does_not_begin_a_start() -> None:
    followed = Followed("a")
    followed.tell(10, probed("a", EndpointProblem.LOADING))
    followed.tell(20, probed("b", None), readied("b"), unreadied("b"), leaving("b"), TimerFired())

    assert followed.starts.in_progress() == []
    assert followed.age_ns(20) == 0
    assert followed.starts.age_ns(PoolName("other"), at(20)) == 0


def test_newly_listed_endpoint_is_matched_with_the_oldest_start() -> None:
    followed = Followed("a")
    followed.want(0, 2)
    followed.want(50, 3)
    followed.tell(60, joined("b"), joined("c"), readied("c"))
    followed.tell(70, readied("b"))

    assert followed.measured == [ColdStart(POOL, duration(10)), ColdStart(POOL, duration(70))]


def test_lower_desired_count_drops_the_newest_start_without_an_endpoint() -> None:
    followed = Followed("a")
    followed.want(0, 2)
    followed.want(50, 4)
    followed.want(60, 2)

    assert followed.starts.in_progress() == [Start(POOL, at(0), StartPhase.NOT_SCHEDULED, None)]
    followed.want(70, 1)
    assert followed.starts.in_progress() == []


def test_first_desired_count_is_treated_as_an_increase_only_if_endpoints_are_listed() -> None:
    """Before the name server's first answer, it is unknown when the endpoints started."""
    silent = Followed()
    silent.want(0, 1)
    silent.tell(5, joined("a"), readied("a"))
    assert silent.measured == []

    listed = Followed("a")
    listed.want(0, 2)
    listed.tell(5, joined("b"), readied("b"))
    assert listed.measured == [ColdStart(POOL, duration(5))]


def test_replacing_a_lost_endpoint_is_in_progress_but_not_measured() -> None:
    followed = Followed("a", "b")
    followed.want(0, 2)
    followed.tell(10, leaving("b"))
    assert followed.age_ns(40) == duration(30)

    followed.tell(50, joined("b"), readied("b"))
    assert followed.measured == []
    assert followed.starts.in_progress() == []


def test_next_endpoint_takes_over_the_start_of_an_endpoint_that_left() -> None:
    followed = Followed("a")
    followed.want(0, 2)
    followed.tell(10, joined("b"))
    followed.tell(20, leaving("b"))
    assert followed.starts.in_progress() == [Start(POOL, at(0), StartPhase.NOT_SCHEDULED, None)]

    followed.tell(30, joined("c"), readied("c"))
    assert followed.measured == [ColdStart(POOL, duration(30))]


def test_endpoint_that_becomes_unready_begins_a_new_start() -> None:
    followed = Followed("a")
    followed.want(0, 1)
    followed.tell(100, unreadied("a"))
    assert followed.phases() == [StartPhase.LOADING]
    assert followed.age_ns(130) == duration(30)

    followed.tell(140, unreadied("a"), readied("a"))
    assert followed.measured == []


def test_stuck_start_does_not_hide_the_age_of_a_newer_one() -> None:
    followed = Followed("a")
    followed.want(0, 2)
    later = STUCK_NS // duration(1)
    assert followed.age_ns(later) == STUCK_NS
    assert followed.age_ns(later + 1) == 0

    followed.want(later, 3)
    assert followed.age_ns(later + 20) == duration(20)
    assert len(followed.starts.in_progress()) == 2


def test_endpoint_in_an_unscaled_pool_begins_its_start_when_listed() -> None:
    followed = Followed()
    followed.tell(10, joined("a"), joined("a"))
    assert followed.age_ns(15) == duration(5)

    followed.tell(20, leaving("a"))
    assert followed.starts.in_progress() == []


def test_starts_are_synchronised_with_the_schedulers_endpoints() -> None:
    followed = Followed("a", "b")
    followed.want(0, 3)
    followed.starts.reconcile(
        [
            summary("a", EndpointState.EJECTED),
            summary("b", EndpointState.READY, leaves=True),
            summary("c", EndpointState.WARMING),
            summary("d", EndpointState.READY),
        ],
        at(50),
    )

    assert followed.starts.in_progress() == [Start(POOL, at(0), StartPhase.STARTING, EndpointId("c"))]
