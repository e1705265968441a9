"""Is what was found told when it is sure, kept while it lasts, and taken back when it is over?"""

from headgate.core.diagnosis.diagnosis import (
    CAUSES,
    CHANGED_AFTER,
    FOLLOWED_AFTER,
    GROWN_AFTER,
    TOLD_AFTER,
    WELL_AFTER,
    Diagnosis,
)
from headgate.core.diagnosis.seconds_seen import FIRST_SECONDS, KEPT_SECONDS, LATE_SECONDS
from headgate.core.scheduler import Scheduler
from headgate.core.summary import Summary
from headgate.model.endpoint import Endpoint
from headgate.model.outcome import Outcome
from headgate.model.units import Duration, EndpointId, Instant, PoolName
from headgate.model.verdict import Cause, HostReport, Incident, Shortage, Verdict
from testing.builders import (
    a_policy,
    arrived,
    at,
    completed,
    dispatch,
    end,
    first_token,
    joined,
    lasting,
    policy_changed,
    progressed,
    readied,
)
from tests.core.diagnosis.pictures import POOL

STUCK = ("stuck 1", "stuck 2", "stuck 3")
USUAL_S = FIRST_SECONDS + LATE_SECONDS + 20


class Life:
    """A gateway with one pool and one endpoint, second by second."""

    def __init__(self, *pools: str) -> None:
        self.diagnosis = Diagnosis()
        self.scheduler = Scheduler()
        self.second = 0
        self.number = 0
        for event in (policy_changed(a_policy(pools=pools or ("p",))), joined("e1", places=64), readied("e1")):
            self.diagnosis.saw(event, self.scheduler.handle(event, self.now), self.now)

    @property
    def now(self) -> Instant:
        return at(self.second)

    def serve(self, count: int = 10, *, tokens: int = 100) -> None:
        """So many ask and are answered at once."""
        for _ in range(count):
            self.number += 1
            name = f"r{self.number}"
            self.diagnosis.saw(arrived(name), [dispatch(name)], self.now)
            self.diagnosis.saw(first_token(name), [], self.now)
            self.diagnosis.saw(progressed(name), [], self.now)
            self.diagnosis.saw(completed(name, tokens=tokens), [end(name, Outcome.COMPLETED)], self.now)

    def refuse(self, count: int = 10, *, known: bool = True) -> None:
        for _ in range(count):
            self.number += 1
            name = f"r{self.number}"
            refused = end(name, Outcome.SHED, service_class="interactive" if known else None)
            self.diagnosis.saw(arrived(name), [refused], self.now)

    def hang(self) -> None:
        """Streams begin, and nothing more is heard of them."""
        for name in STUCK:
            self.diagnosis.saw(arrived(name), [dispatch(name)], self.now)
            self.diagnosis.saw(first_token(name), [], self.now)

    def look(self, lag: float = 0.0) -> tuple[Verdict, ...]:
        self.second += 1
        self.diagnosis.reported(HostReport("g", lasting(lag), 10, 1, ((POOL, Duration(10**6)),)), self.now)
        return self.diagnosis.look(self.scheduler.summary(), self.now)

    def go_on(
        self,
        seconds: int,
        *,
        serve: int = 0,
        refuse: int = 0,
        tokens: int = 100,
        known: bool = True,
        lag: float = 0.0,
    ) -> tuple[Verdict, ...]:
        """What is told at the end of so many such seconds."""
        verdicts: tuple[Verdict, ...] = ()
        for _ in range(seconds):
            self.serve(serve, tokens=tokens)
            self.refuse(refuse, known=known)
            verdicts = self.look(lag)
        return verdicts

    def learn(self) -> tuple[Verdict, ...]:
        return self.go_on(USUAL_S, serve=10)


def incidents(verdicts: tuple[Verdict, ...]) -> list[tuple[PoolName | None, Incident]]:
    return [(each.pool, each.incident) for each in verdicts]


WELL = [("p", Incident.HEALTHY), (None, Incident.HEALTHY)]


def test_a_pool_that_serves_is_healthy() -> None:
    verdicts = Life().learn()

    assert incidents(verdicts) == WELL
    assert verdicts[0].sentence == "Pool p is healthy."
    assert verdicts[1].sentence == "The gateway is healthy."


def test_a_healthy_state_begins_with_the_first_look() -> None:
    life = Life()
    life.learn()
    first = life.second - USUAL_S + 1

    assert {each.since for each in life.look()} == {at(first)}


def test_every_incident_has_a_cause() -> None:
    assert list(CAUSES) == sorted(Incident, key=list(CAUSES).index)


def test_an_overload_is_told_after_a_few_looks_and_taken_back_after_more() -> None:
    life = Life()
    life.learn()
    told = list[Incident]()
    for _ in range(TOLD_AFTER + 1):
        life.serve()
        life.refuse()
        told.append(life.look()[0].incident)
    assert told[: TOLD_AFTER - 1] == [Incident.HEALTHY] * (TOLD_AFTER - 1)
    assert told[-1] is Incident.OVERLOAD

    for _ in range(LATE_SECONDS + WELL_AFTER - 2):
        life.serve()
        assert life.look()[0].incident is Incident.OVERLOAD
    assert incidents(life.go_on(3, serve=10)) == WELL


def test_a_verdict_says_since_when_who_and_what_to_do() -> None:
    life = Life()
    life.learn()
    verdict = life.go_on(5, serve=10, refuse=10)[0]

    assert verdict.cause is Cause.COMPUTE
    assert verdict.since == at(USUAL_S + TOLD_AFTER)
    assert verdict.affected[0].tenant == "acme"
    assert verdict.affected[0].how == (
        "50 requests late or not served in the last 10 s; 0 s to the first token on the mean, usually 0 s"
    )
    assert verdict.evidence
    assert verdict.action


def test_who_was_refused_without_a_class_is_named_by_tenant() -> None:
    life = Life()
    life.learn()
    verdict = life.go_on(5, refuse=10, known=False)[0]

    assert (verdict.affected[0].service_class, verdict.affected[0].tenant) == (None, "acme")


def test_answers_that_grew_are_told_of_their_class() -> None:
    life = Life()
    life.learn()
    verdict = life.go_on(20, serve=10, tokens=300)[0]

    assert verdict.incident is Incident.COST_DRIFT
    assert [(each.service_class, each.tenant) for each in verdict.affected] == [("interactive", None)]


def test_that_answers_grew_is_told_for_a_while_and_then_they_are_usual() -> None:
    life = Life()
    life.learn()
    told = [life.go_on(60, serve=5, tokens=220)[0].incident for _ in range(20)]

    assert told[:10] == [Incident.COST_DRIFT] * 10
    assert told[11:] == [Incident.HEALTHY] * 9
    assert life.go_on(30, serve=5, tokens=400)[0].incident is Incident.COST_DRIFT


def test_an_outage_is_told_though_answers_grew_before_it() -> None:
    life = Life()
    life.learn()
    assert life.go_on(30, serve=5, tokens=220)[0].incident is Incident.COST_DRIFT

    assert life.go_on(10, serve=5, refuse=20, tokens=220)[0].incident is Incident.OVERLOAD


def after_an_overload_with_long_answers() -> Life:
    life = Life()
    life.learn()
    assert life.go_on(30, serve=10, refuse=20, tokens=400)[0].incident is Incident.OVERLOAD
    return life


def test_long_answers_of_an_incident_are_not_reported_as_cost_drift_after_it() -> None:
    life = after_an_overload_with_long_answers()
    seen = [life.go_on(1, serve=10)[0].incident for _ in range(60)]

    assert set(seen) == {Incident.OVERLOAD, Incident.HEALTHY}
    assert seen.count(Incident.OVERLOAD) < LATE_SECONDS + WELL_AFTER


def test_answers_that_stay_long_after_an_incident_are_reported_as_cost_drift() -> None:
    life = after_an_overload_with_long_answers()
    seen = [life.go_on(1, serve=10, tokens=400)[0].incident for _ in range(LATE_SECONDS + KEPT_SECONDS + TOLD_AFTER)]

    assert list(dict.fromkeys(seen)) == [Incident.OVERLOAD, Incident.HEALTHY, Incident.COST_DRIFT]


def test_incident_stays_while_callers_are_harmed_and_its_long_answers_are_in_the_window() -> None:
    life = after_an_overload_with_long_answers()
    seen = [life.go_on(1, serve=9, refuse=1, tokens=400)[0].incident for _ in range(LATE_SECONDS + GROWN_AFTER)]

    assert list(dict.fromkeys(seen)) == [Incident.OVERLOAD, Incident.COST_DRIFT]
    assert seen.count(Incident.OVERLOAD) >= GROWN_AFTER


def test_long_answers_are_no_cost_drift_as_soon_as_another_incident_is_reported() -> None:
    life = Life()
    life.learn()
    assert life.go_on(TOLD_AFTER, serve=10, refuse=20, tokens=400)[0].incident is Incident.OVERLOAD
    seen = [life.go_on(1, serve=9, refuse=1, tokens=400)[0].incident for _ in range(20)]

    assert set(seen) == {Incident.OVERLOAD}


def test_prompts_that_grew_at_once_are_told_so_for_as_long_as_it_lasts() -> None:
    life = Life()
    life.learn()
    told = set[Incident]()
    for second in range(60):
        for _ in range(20):
            life.number += 1
            name = f"r{life.number}"
            life.diagnosis.saw(arrived(name, prompt_bytes=4_000), [end(name, Outcome.SHED)], life.now)
        incident = life.look()[0].incident
        if second > 10:
            told.add(incident)

    assert told == {Incident.LONG_PROMPTS}


def test_name_that_does_not_resolve_hides_no_incident_of_a_pool() -> None:
    life = Life()
    life.learn()
    shortage = Shortage("no answer for a.test", "Check it.", partial=True)
    for _ in range(12):
        life.diagnosis.reported(HostReport("other", lasting(0.001), 10, 1, shortages=(shortage,)), life.now)
        verdicts = life.go_on(1, serve=10, refuse=20)

    assert incidents(verdicts) == [(None, Incident.GATEWAY_RESOURCES), ("p", Incident.OVERLOAD)]


def test_other_incident_is_found_while_cost_drift_is_held_back() -> None:
    life = after_an_overload_with_long_answers()
    for _ in range(LATE_SECONDS + WELL_AFTER):
        verdicts = life.go_on(1, serve=10, tokens=400)
    assert verdicts[0].incident is Incident.HEALTHY

    # Fewer requests than usual come, so that long answers would be the first finding.
    seen = [life.go_on(1, serve=5, refuse=5, tokens=400)[0].incident for _ in range(LATE_SECONDS)]

    assert Incident.OVERLOAD in seen


def test_a_process_that_falls_behind_is_told_first_and_for_the_pools_it_harms() -> None:
    life = Life()
    life.learn()
    verdicts = life.go_on(12, serve=10, refuse=10, lag=1.0)
    assert incidents(verdicts) == [(None, Incident.SCHEDULER_BEHIND), ("p", Incident.SCHEDULER_BEHIND)]

    life = Life()
    life.learn()
    verdicts = life.go_on(12, serve=10, lag=1.0)
    assert incidents(verdicts) == [(None, Incident.SCHEDULER_BEHIND), ("p", Incident.HEALTHY)]


def test_a_hang_gives_way_to_what_follows_from_it_only_after_long() -> None:
    life = Life()
    life.learn()
    life.hang()
    assert life.go_on(9)[0].incident is Incident.ENGINE_HANG

    for name in STUCK:
        life.diagnosis.saw(completed(name), [end(name, Outcome.COMPLETED)], life.now)
    told = list[Incident]()
    for _ in range(FOLLOWED_AFTER + 2):
        life.refuse()
        told.append(life.look()[0].incident)
    assert told[CHANGED_AFTER + 2] is Incident.ENGINE_HANG
    assert told[-1] is Incident.OVERLOAD


def test_another_incident_replaces_the_one_told_after_a_few_looks() -> None:
    life = Life()
    life.learn()
    verdict = life.go_on(5, refuse=10)[0]
    assert verdict.incident is Incident.OVERLOAD
    since = verdict.since
    life.hang()
    verdict = life.go_on(5 + CHANGED_AFTER, refuse=10)[0]

    assert (verdict.incident, verdict.since) == (Incident.ENGINE_HANG, since)


def test_of_two_pools_the_one_that_harms_comes_first() -> None:
    life = Life("a", "p")
    life.scheduler = Scheduler()
    for event in (policy_changed(a_policy(pools=("a", "p"))), joined("e1", places=64), readied("e1")):
        life.scheduler.handle(event, life.now)
    # The first pool of the model is at home; what was sent counts where it was.
    for _ in range(USUAL_S):
        life.serve()
        life.look()
    life.hang()
    verdicts = life.go_on(9)

    assert incidents(verdicts) == [("p", Incident.ENGINE_HANG), ("a", Incident.HEALTHY), (None, Incident.HEALTHY)]


def test_an_endpoint_that_nobody_followed_is_left_out() -> None:
    life = Life()
    for event in (joined("e2"), readied("e2")):
        life.scheduler.handle(event, life.now)

    assert incidents(life.look()) == WELL


def test_a_process_that_decides_nothing_speaks_of_itself_alone() -> None:
    diagnosis = Diagnosis()
    nothing = Summary(policy_hash="", queued={}, requests=0, endpoints=())

    assert incidents(diagnosis.look(nothing, at(1))) == [(None, Incident.HEALTHY)]


def test_an_endpoint_of_another_pool_is_not_looked_at() -> None:
    life = Life("p", "q")
    event = joined("e3", pool="q")
    life.diagnosis.saw(event, [], life.now)
    life.scheduler.handle(event, life.now)
    assert Endpoint(EndpointId("e3"), PoolName("q"), 1) == event.endpoint

    assert len(life.look()) == 3
