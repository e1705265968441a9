"""Tests for verdicts: when a finding is reported, kept, replaced and withdrawn."""

from headgate.core.diagnosis.diagnosis import (
    CAUSES,
    CLEAR_AFTER_LOOKS,
    CONSEQUENCE_AFTER_LOOKS,
    COST_DRIFT_AFTER_LOOKS,
    REPLACE_AFTER_LOOKS,
    REPORT_AFTER_LOOKS,
    Diagnosis,
)
from headgate.core.diagnosis.window_counts import KEPT_SECONDS, RECENT_SECONDS, SKIPPED_SECONDS
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
    duration,
    end,
    first_token,
    joined,
    policy_changed,
    progressed,
    readied,
)
from tests.core.diagnosis.pictures import POOL

STUCK = ("stuck 1", "stuck 2", "stuck 3")
USUAL_S = SKIPPED_SECONDS + RECENT_SECONDS + 20


class Life:
    """A gateway with one pool and one endpoint that a test advances second by second."""

    def __init__(self, *pools: str) -> None:
        self.diagnosis = Diagnosis()
        self.scheduler = Scheduler()
        self.second = 0
        self.number = 0
        for event in (policy_changed(a_policy(pools=pools or ("p",))), joined("e1", places=64), readied("e1")):
            self.diagnosis.observe(event, self.scheduler.handle(event, self.now), self.now)

    @property
    def now(self) -> Instant:
        return at(self.second)

    def serve(self, count: int = 10, *, tokens: int = 100) -> None:
        """Serves `count` requests immediately."""
        for _ in range(count):
            self.number += 1
            name = f"r{self.number}"
            self.diagnosis.observe(arrived(name), [dispatch(name)], self.now)
            self.diagnosis.observe(first_token(name), [], self.now)
            self.diagnosis.observe(progressed(name), [], self.now)
            self.diagnosis.observe(completed(name, tokens=tokens), [end(name, Outcome.COMPLETED)], self.now)

    def refuse(self, count: int = 10, *, known: bool = True) -> None:
        for _ in range(count):
            self.number += 1
            name = f"r{self.number}"
            refused = end(name, Outcome.SHED, service_class="interactive" if known else None)
            self.diagnosis.observe(arrived(name), [refused], self.now)

    def hang(self) -> None:
        """Starts streams that send nothing after their first token."""
        for name in STUCK:
            self.diagnosis.observe(arrived(name), [dispatch(name)], self.now)
            self.diagnosis.observe(first_token(name), [], self.now)

    def look(self, lag: float = 0.0) -> tuple[Verdict, ...]:
        self.second += 1
        self.diagnosis.record_host_report(HostReport("g", duration(lag), 10, 1, ((POOL, Duration(10**6)),)), self.now)
        return self.diagnosis.diagnose(self.scheduler.summary(), self.now)

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
        """Advances this many seconds and returns the verdicts from the last check."""
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


def test_serving_pool_is_healthy() -> None:
    verdicts = Life().learn()

    assert incidents(verdicts) == WELL
    assert verdicts[0].summary == "Pool p is healthy."
    assert verdicts[1].summary == "The gateway is healthy."


def test_healthy_state_begins_at_first_check() -> None:
    life = Life()
    life.learn()
    first = life.second - USUAL_S + 1

    assert {each.since for each in life.look()} == {at(first)}


def test_every_incident_has_a_cause() -> None:
    assert list(CAUSES) == sorted(Incident, key=list(CAUSES).index)


def test_overload_is_reported_after_a_few_checks_and_withdrawn_after_several_more() -> None:
    life = Life()
    life.learn()
    told = list[Incident]()
    for _ in range(REPORT_AFTER_LOOKS + 1):
        life.serve()
        life.refuse()
        told.append(life.look()[0].incident)
    assert told[: REPORT_AFTER_LOOKS - 1] == [Incident.HEALTHY] * (REPORT_AFTER_LOOKS - 1)
    assert told[-1] is Incident.OVERLOAD

    for _ in range(RECENT_SECONDS + CLEAR_AFTER_LOOKS - 2):
        life.serve()
        assert life.look()[0].incident is Incident.OVERLOAD
    assert incidents(life.go_on(3, serve=10)) == WELL


def test_verdict_includes_start_time_affected_callers_evidence_and_action() -> None:
    life = Life()
    life.learn()
    verdict = life.go_on(5, serve=10, refuse=10)[0]

    assert verdict.cause is Cause.COMPUTE
    assert verdict.since == at(USUAL_S + REPORT_AFTER_LOOKS)
    assert verdict.affected[0].tenant == "acme"
    assert verdict.affected[0].effect == (
        "50 requests late or not served in the last 10 s; mean time to first token 0 s, usually 0 s"
    )
    assert verdict.evidence
    assert verdict.action


def test_requests_rejected_without_class_are_reported_by_tenant() -> None:
    life = Life()
    life.learn()
    verdict = life.go_on(5, refuse=10, known=False)[0]

    assert (verdict.affected[0].service_class, verdict.affected[0].tenant) == (None, "acme")


def test_cost_drift_identifies_the_affected_class() -> None:
    life = Life()
    life.learn()
    verdict = life.go_on(20, serve=10, tokens=300)[0]

    assert verdict.incident is Incident.COST_DRIFT
    assert [(each.service_class, each.tenant) for each in verdict.affected] == [("interactive", None)]


def test_cost_drift_ends_when_longer_responses_become_normal() -> None:
    life = Life()
    life.learn()
    told = [life.go_on(60, serve=5, tokens=220)[0].incident for _ in range(20)]

    assert told[:10] == [Incident.COST_DRIFT] * 10
    assert told[11:] == [Incident.HEALTHY] * 9
    assert life.go_on(30, serve=5, tokens=400)[0].incident is Incident.COST_DRIFT


def test_overload_replaces_an_earlier_cost_drift() -> None:
    life = Life()
    life.learn()
    assert life.go_on(30, serve=5, tokens=220)[0].incident is Incident.COST_DRIFT

    assert life.go_on(10, serve=5, refuse=20, tokens=220)[0].incident is Incident.OVERLOAD


def after_an_overload_with_long_answers() -> Life:
    life = Life()
    life.learn()
    assert life.go_on(30, serve=10, refuse=20, tokens=400)[0].incident is Incident.OVERLOAD
    return life


def test_long_responses_during_an_incident_are_not_reported_as_cost_drift_afterwards() -> None:
    life = after_an_overload_with_long_answers()
    seen = [life.go_on(1, serve=10)[0].incident for _ in range(60)]

    assert set(seen) == {Incident.OVERLOAD, Incident.HEALTHY}
    assert seen.count(Incident.OVERLOAD) < RECENT_SECONDS + CLEAR_AFTER_LOOKS


def test_responses_that_stay_long_after_an_incident_are_reported_as_cost_drift() -> None:
    life = after_an_overload_with_long_answers()
    seen = [
        life.go_on(1, serve=10, tokens=400)[0].incident
        for _ in range(RECENT_SECONDS + KEPT_SECONDS + REPORT_AFTER_LOOKS)
    ]

    assert list(dict.fromkeys(seen)) == [Incident.OVERLOAD, Incident.HEALTHY, Incident.COST_DRIFT]


def test_incident_stays_open_while_callers_are_harmed_and_its_long_responses_are_in_the_window() -> None:
    life = after_an_overload_with_long_answers()
    seen = [
        life.go_on(1, serve=9, refuse=1, tokens=400)[0].incident for _ in range(RECENT_SECONDS + COST_DRIFT_AFTER_LOOKS)
    ]

    assert list(dict.fromkeys(seen)) == [Incident.OVERLOAD, Incident.COST_DRIFT]
    assert seen.count(Incident.OVERLOAD) >= COST_DRIFT_AFTER_LOOKS


def test_long_responses_are_not_cost_drift_while_another_incident_is_reported() -> None:
    life = Life()
    life.learn()
    assert life.go_on(REPORT_AFTER_LOOKS, serve=10, refuse=20, tokens=400)[0].incident is Incident.OVERLOAD
    seen = [life.go_on(1, serve=9, refuse=1, tokens=400)[0].incident for _ in range(20)]

    assert set(seen) == {Incident.OVERLOAD}


def test_sudden_prompt_growth_is_reported_as_long_prompts_while_it_lasts() -> None:
    life = Life()
    life.learn()
    told = set[Incident]()
    for second in range(60):
        for _ in range(20):
            life.number += 1
            name = f"r{life.number}"
            life.diagnosis.observe(arrived(name, prompt_bytes=4_000), [end(name, Outcome.SHED)], life.now)
        incident = life.look()[0].incident
        if second > 10:
            told.add(incident)

    assert told == {Incident.LONG_PROMPTS}


def test_unresolved_name_does_not_hide_a_pool_incident() -> None:
    life = Life()
    life.learn()
    shortage = Shortage("no answer for a.test", "Check the name server.", partial=True)
    for _ in range(12):
        life.diagnosis.record_host_report(HostReport("other", duration(0.001), 10, 1, shortages=(shortage,)), life.now)
        verdicts = life.go_on(1, serve=10, refuse=20)

    assert incidents(verdicts) == [(None, Incident.GATEWAY_RESOURCES), ("p", Incident.OVERLOAD)]


def test_other_incident_is_reported_while_cost_drift_is_suppressed() -> None:
    life = after_an_overload_with_long_answers()
    for _ in range(RECENT_SECONDS + CLEAR_AFTER_LOOKS):
        verdicts = life.go_on(1, serve=10, tokens=400)
    assert verdicts[0].incident is Incident.HEALTHY

    # With fewer arrivals than usual, the pattern for long responses would match first.
    seen = [life.go_on(1, serve=5, refuse=5, tokens=400)[0].incident for _ in range(RECENT_SECONDS)]

    assert Incident.OVERLOAD in seen


def test_lagging_process_is_reported_first_and_for_the_pools_it_harms() -> None:
    life = Life()
    life.learn()
    verdicts = life.go_on(12, serve=10, refuse=10, lag=1.0)
    assert incidents(verdicts) == [(None, Incident.SCHEDULER_BEHIND), ("p", Incident.SCHEDULER_BEHIND)]

    life = Life()
    life.learn()
    verdicts = life.go_on(12, serve=10, lag=1.0)
    assert incidents(verdicts) == [(None, Incident.SCHEDULER_BEHIND), ("p", Incident.HEALTHY)]


def test_engine_hang_is_replaced_by_its_consequences_only_after_a_long_delay() -> None:
    life = Life()
    life.learn()
    life.hang()
    assert life.go_on(9)[0].incident is Incident.ENGINE_HANG

    for name in STUCK:
        life.diagnosis.observe(completed(name), [end(name, Outcome.COMPLETED)], life.now)
    told = list[Incident]()
    for _ in range(CONSEQUENCE_AFTER_LOOKS + 2):
        life.refuse()
        told.append(life.look()[0].incident)
    assert told[REPLACE_AFTER_LOOKS + 2] is Incident.ENGINE_HANG
    assert told[-1] is Incident.OVERLOAD


def test_different_incident_replaces_the_reported_one_after_a_few_checks() -> None:
    life = Life()
    life.learn()
    verdict = life.go_on(5, refuse=10)[0]
    assert verdict.incident is Incident.OVERLOAD
    since = verdict.since
    life.hang()
    verdict = life.go_on(5 + REPLACE_AFTER_LOOKS, refuse=10)[0]

    assert (verdict.incident, verdict.since) == (Incident.ENGINE_HANG, since)


def test_pool_with_an_incident_is_listed_before_a_healthy_pool() -> None:
    life = Life("a", "p")
    life.scheduler = Scheduler()
    for event in (policy_changed(a_policy(pools=("a", "p"))), joined("e1", places=64), readied("e1")):
        life.scheduler.handle(event, life.now)
    # Arrivals count towards the model's first pool, dispatched requests towards the pool they were sent to.
    for _ in range(USUAL_S):
        life.serve()
        life.look()
    life.hang()
    verdicts = life.go_on(9)

    assert incidents(verdicts) == [("p", Incident.ENGINE_HANG), ("a", Incident.HEALTHY), (None, Incident.HEALTHY)]


def test_endpoint_unknown_to_the_diagnosis_is_ignored() -> None:
    life = Life()
    for event in (joined("e2"), readied("e2")):
        life.scheduler.handle(event, life.now)

    assert incidents(life.look()) == WELL


def test_process_without_pools_reports_only_the_gateway() -> None:
    diagnosis = Diagnosis()
    nothing = Summary(policy_hash="", queued={}, requests=0, endpoints=())

    assert incidents(diagnosis.diagnose(nothing, at(1))) == [(None, Incident.HEALTHY)]


def test_endpoint_in_another_pool_is_ignored() -> None:
    life = Life("p", "q")
    event = joined("e3", pool="q")
    life.diagnosis.observe(event, [], life.now)
    life.scheduler.handle(event, life.now)
    assert Endpoint(EndpointId("e3"), PoolName("q"), 1) == event.endpoint

    assert len(life.look()) == 3
