"""Which starts are under way, and how long did those take that a raised want began?"""

from headgate.core.autoscaling.starts import STUCK_NS, ColdStart, Start, StartPhase, Starts
from headgate.core.events import EndpointProbed, Event, TimerFired
from headgate.core.summary import EndpointSummary
from headgate.model.endpoint import EndpointState, EndpointTrouble
from headgate.model.units import EndpointId, PoolName
from testing.builders import at, joined, lasting, leaving, readied, unreadied

POOL = PoolName("p")


class Followed:
    """The starts of one pool, and the cold starts that were measured."""

    def __init__(self, *ready: str) -> None:
        self.starts = Starts()
        self.measured: list[ColdStart] = []
        for name in ready:
            self.tell(0, joined(name), readied(name))

    def tell(self, second: float, *events: Event) -> None:
        for event in events:
            if (cold_start := self.starts.saw(event, at(second))) is not None:
                self.measured.append(cold_start)

    def want(self, second: float, endpoints: int) -> None:
        self.starts.want(POOL, endpoints, at(second))

    def phases(self) -> list[StartPhase]:
        return [start.phase for start in self.starts.under_way()]

    def age_ns(self, second: float) -> int:
        return self.starts.age_ns(POOL, at(second))


def probed(name: str, trouble: EndpointTrouble | None) -> EndpointProbed:
    return EndpointProbed(EndpointId(name), trouble)


def summary(name: str, state: EndpointState, *, leaves: bool = False) -> EndpointSummary:
    return EndpointSummary(EndpointId(name), POOL, state, leaves, in_flight=0, in_flight_max=1)


def test_cold_start_lasts_from_the_raised_want_to_the_ready_endpoint() -> None:
    followed = Followed("a")
    followed.want(10, 1)
    followed.want(20, 2)
    followed.tell(80, joined("b"))
    assert followed.age_ns(100) == lasting(80)

    followed.tell(140, readied("b"))
    assert followed.measured == [ColdStart(POOL, lasting(120))]
    assert followed.starts.under_way() == []
    assert followed.age_ns(150) == 0


def test_start_shows_every_phase_that_can_be_observed() -> None:
    followed = Followed("a")
    followed.want(0, 2)
    assert followed.starts.under_way() == [Start(POOL, at(0), StartPhase.NOT_SCHEDULED, None)]

    followed.tell(10, joined("b"))
    assert followed.starts.under_way() == [Start(POOL, at(0), StartPhase.STARTING, EndpointId("b"))]
    followed.tell(20, probed("b", EndpointTrouble.REFUSED))
    assert followed.phases() == [StartPhase.STARTING]
    followed.tell(30, probed("b", EndpointTrouble.LOADING))
    assert followed.phases() == [StartPhase.LOADING]
    followed.tell(40, probed("b", None))
    assert followed.phases() == [StartPhase.WARMING]


def test_probe_of_a_ready_or_unknown_endpoint_begins_no_start() -> None:
    followed = Followed("a")
    followed.tell(10, probed("a", EndpointTrouble.LOADING))
    followed.tell(20, probed("b", None), readied("b"), unreadied("b"), leaving("b"), TimerFired())

    assert followed.starts.under_way() == []
    assert followed.age_ns(20) == 0
    assert followed.starts.age_ns(PoolName("other"), at(20)) == 0


def test_endpoint_that_is_listed_takes_over_the_oldest_start() -> None:
    followed = Followed("a")
    followed.want(0, 2)
    followed.want(50, 3)
    followed.tell(60, joined("b"), joined("c"), readied("c"))
    followed.tell(70, readied("b"))

    assert followed.measured == [ColdStart(POOL, lasting(10)), ColdStart(POOL, lasting(70))]


def test_lowered_want_gives_up_the_newest_start_that_has_no_endpoint() -> None:
    followed = Followed("a")
    followed.want(0, 2)
    followed.want(50, 4)
    followed.want(60, 2)

    assert followed.starts.under_way() == [Start(POOL, at(0), StartPhase.NOT_SCHEDULED, None)]
    followed.want(70, 1)
    assert followed.starts.under_way() == []


def test_first_want_is_raised_only_if_endpoints_are_listed() -> None:
    """A name server that has not answered yet says nothing about when the endpoints started."""
    silent = Followed()
    silent.want(0, 1)
    silent.tell(5, joined("a"), readied("a"))
    assert silent.measured == []

    listed = Followed("a")
    listed.want(0, 2)
    listed.tell(5, joined("b"), readied("b"))
    assert listed.measured == [ColdStart(POOL, lasting(5))]


def test_start_in_place_of_a_lost_endpoint_is_under_way_and_not_measured() -> None:
    followed = Followed("a", "b")
    followed.want(0, 2)
    followed.tell(10, leaving("b"))
    assert followed.age_ns(40) == lasting(30)

    followed.tell(50, joined("b"), readied("b"))
    assert followed.measured == []
    assert followed.starts.under_way() == []


def test_endpoint_that_leaves_before_it_was_ready_leaves_its_start_to_the_next() -> None:
    followed = Followed("a")
    followed.want(0, 2)
    followed.tell(10, joined("b"))
    followed.tell(20, leaving("b"))
    assert followed.starts.under_way() == [Start(POOL, at(0), StartPhase.NOT_SCHEDULED, None)]

    followed.tell(30, joined("c"), readied("c"))
    assert followed.measured == [ColdStart(POOL, lasting(30))]


def test_endpoint_that_loads_again_is_starting_from_then_on() -> None:
    followed = Followed("a")
    followed.want(0, 1)
    followed.tell(100, unreadied("a"))
    assert followed.phases() == [StartPhase.LOADING]
    assert followed.age_ns(130) == lasting(30)

    followed.tell(140, unreadied("a"), readied("a"))
    assert followed.measured == []


def test_stuck_start_does_not_hide_the_age_of_a_newer_one() -> None:
    followed = Followed("a")
    followed.want(0, 2)
    later = STUCK_NS // lasting(1)
    assert followed.age_ns(later) == STUCK_NS
    assert followed.age_ns(later + 1) == 0

    followed.want(later, 3)
    assert followed.age_ns(later + 20) == lasting(20)
    assert len(followed.starts.under_way()) == 2


def test_endpoints_of_a_pool_that_is_not_scaled_are_starting_from_when_they_are_listed() -> None:
    followed = Followed()
    followed.tell(10, joined("a"), joined("a"))
    assert followed.age_ns(15) == lasting(5)

    followed.tell(20, leaving("a"))
    assert followed.starts.under_way() == []


def test_list_of_the_scheduler_is_taken_over() -> None:
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

    assert followed.starts.under_way() == [Start(POOL, at(0), StartPhase.STARTING, EndpointId("c"))]
