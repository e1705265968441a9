"""Tests for the incidents reported for endpoints that are not serving."""

from dataclasses import replace
from typing import Any

import pytest

from headgate.core.diagnosis.endpoint_stats import STEADY_NS
from headgate.core.diagnosis.endpoints_down import START_NS
from headgate.core.diagnosis.finding import IncidentFinding
from headgate.core.diagnosis.patterns import BACKLOG_MIN, find_incident
from headgate.core.diagnosis.pool_observation import EndpointObservation
from headgate.model.endpoint import NAME_UNRESOLVED, EndpointProblem, EndpointState
from headgate.model.units import SECOND, Instant
from headgate.model.verdict import Incident
from testing.builders import at
from tests.core.diagnosis.pictures import endpoint, picture, seen


def told_of(*endpoints: EndpointObservation, harm: bool = False, **facts: Any) -> IncidentFinding:
    one = find_incident(picture(harm=harm, endpoints=endpoints, **facts))
    assert one is not None
    return one


def probed(name: str, trouble: EndpointProblem, detail: str = "", **facts: Any) -> EndpointObservation:
    return endpoint(name, trouble=trouble, detail=detail, probe_fails=True, **facts)


def ejected(name: str, trouble: EndpointProblem | None, detail: str = "", **facts: Any) -> EndpointObservation:
    return endpoint(name, state=EndpointState.EJECTED, trouble=trouble, detail=detail, **facts)


@pytest.mark.parametrize(
    ("trouble", "incident", "words"),
    [
        (EndpointProblem.CONNECTION_REFUSED, Incident.ENGINE_DOWN, "refuses connections: its process has exited"),
        (EndpointProblem.UNREACHABLE, Incident.ENGINE_DOWN, "cannot be reached (no connection)"),
        (EndpointProblem.UNRESPONSIVE, Incident.ENGINE_HANG, "accepts connections but does not respond"),
        (EndpointProblem.LOADING, Incident.ENGINE_DOWN, "has restarted and is still loading"),
        (EndpointProblem.ERRORS, Incident.ENGINE_FAILING, "fails requests"),
        (EndpointProblem.KEY_REJECTED, Incident.ENGINE_MISCONFIGURED, "rejects the gateway's key"),
        (EndpointProblem.MODEL_UNKNOWN, Incident.ENGINE_MISCONFIGURED, "does not serve the model"),
    ],
)
def test_failing_probe_is_reported_even_if_no_caller_is_harmed(
    trouble: EndpointProblem, incident: Incident, words: str
) -> None:
    one = told_of(endpoint(), probed("p/2", trouble))

    assert one.incident is incident
    assert one.sentence.startswith(f"Endpoint p/2 in pool p {words}")
    assert one.sentence.endswith("1 of 2 endpoints is serving.")


@pytest.mark.parametrize("state", [EndpointState.EJECTED, EndpointState.TRIAL])
def test_ejected_endpoint_keeps_incident_open_while_other_endpoints_serve(state: EndpointState) -> None:
    hung = endpoint("p/2", state=state, trouble=EndpointProblem.UNRESPONSIVE, detail="no token in time")
    one = told_of(endpoint(), hung, recent={"attempts_failed": 0})

    assert one.incident is Incident.ENGINE_HANG
    trial = "is on trial: its probe passes; its last failure was that it accepts connections but does not respond"
    assert (trial in one.sentence) == (state is EndpointState.TRIAL)
    assert "0 of" not in one.sentence


def test_verdict_shows_failure_detail() -> None:
    one = told_of(endpoint(), ejected("p/2", EndpointProblem.ERRORS, "HTTP 500"))

    assert "fails requests (HTTP 500)" in one.sentence
    assert told_of(ejected("p/2", None)).incident is Incident.ENGINE_FAILING


def test_advice_names_all_engines_to_restart() -> None:
    down = [probed(f"p/{number}", EndpointProblem.CONNECTION_REFUSED) for number in range(5)]

    assert told_of(*down[:1]).action.startswith("Restart the engine of p/0 and check its log")
    assert told_of(*down[:2]).action.startswith("Restart the engines of p/0, p/1 and check their logs")
    assert told_of(*down).action.startswith("Restart the engines of p/0, p/1, p/2, … and check their logs")


def test_advice_for_an_unresolved_host_name_recommends_correcting_the_name() -> None:
    detail = f"GET /health failed: {NAME_UNRESOLVED}"
    unnamed = probed("p/a.test:8081", EndpointProblem.UNREACHABLE, detail)

    assert told_of(endpoint(), unnamed).action.startswith("Check the DNS record of the host of p/a.test:8081")
    down = [probed(f"p/{number}", EndpointProblem.CONNECTION_REFUSED) for number in (1, 2)]
    assert told_of(*down, unnamed).action.startswith("Restart the engines of p/1, p/2, p/a.test:8081")


def test_most_common_incident_among_endpoints_is_reported() -> None:
    refused = [probed(f"p/{number}", EndpointProblem.CONNECTION_REFUSED) for number in range(4)]
    one = told_of(*refused, ejected("p/9", EndpointProblem.UNRESPONSIVE))

    assert one.incident is Incident.ENGINE_DOWN
    assert one.sentence.startswith("4 endpoints in pool p are not serving (p/0, p/1, p/2, …): p/0 refuses connections")
    assert one.sentence.endswith("0 of 5 endpoints are serving.")
    assert told_of(refused[0]).sentence.endswith("0 of 1 endpoint is serving.")
    of_two = (refused[0], ejected("p/9", EndpointProblem.UNRESPONSIVE))
    assert told_of(*of_two).incident is Incident.ENGINE_DOWN
    assert told_of(*of_two, reported=Incident.ENGINE_HANG).incident is Incident.ENGINE_HANG
    assert told_of(*refused[:2]).sentence.startswith("2 endpoints in pool p are not serving (p/0, p/1): p/0 refuses")


def test_failing_probes_on_a_leaving_endpoint_cause_no_incident() -> None:
    assert (
        find_incident(picture(harm=False, endpoints=(probed("p/2", EndpointProblem.CONNECTION_REFUSED, leaving=True),)))
        is None
    )


# Starting endpoints


def starting(trouble: EndpointProblem, *, joined: Instant) -> EndpointObservation:
    facts: dict[str, Any] = {"readied_at": None, "joined_at": joined, "open_streams": 0, "decoding": 0}
    return probed("p/2", trouble, state=EndpointState.WARMING, **facts)


def test_engine_down_since_start_is_reported_as_down_rather_than_starting() -> None:
    refused = starting(EndpointProblem.CONNECTION_REFUSED, joined=at(0))

    one = told_of(refused, now=at(40))
    assert one.incident is Incident.ENGINE_DOWN
    assert "has refused connections since it was added 40 s ago" in one.sentence
    assert find_incident(picture(harm=False, endpoints=(refused,), now=Instant(at(0) + START_NS - SECOND))) is None
    early = picture(harm=False, endpoints=(refused,), now=at(2), recent={"missing": 1})
    assert find_incident(early) is not None
    assert told_of(starting(EndpointProblem.UNRESPONSIVE, joined=at(0)), now=at(40)).incident is Incident.ENGINE_HANG
    unreachable = told_of(starting(EndpointProblem.UNREACHABLE, joined=at(0)), now=at(40))
    assert "has been unreachable" in unreachable.sentence


def test_endpoint_that_joins_later_is_not_reported_during_its_cold_start() -> None:
    refused = starting(EndpointProblem.CONNECTION_REFUSED, joined=at(500))

    assert find_incident(picture(harm=False, endpoints=(endpoint(), refused), now=at(600))) is None
    assert told_of(endpoint(), refused, now=at(621)).incident is Incident.ENGINE_DOWN


def test_slowly_loading_endpoint_is_reported_as_cold_start() -> None:
    one = told_of(endpoint(), starting(EndpointProblem.LOADING, joined=at(0)), now=at(60))

    assert one.incident is Incident.COLD_START
    assert "has been loading for" in one.sentence


def test_misconfigured_engine_is_reported_immediately() -> None:
    one = told_of(starting(EndpointProblem.KEY_REJECTED, joined=at(999)))
    model = told_of(starting(EndpointProblem.MODEL_UNKNOWN, joined=at(999)))

    assert one.incident is model.incident is Incident.ENGINE_MISCONFIGURED
    assert "Set api_key of pool p" in one.action
    assert "Set served_model of pool p" in model.action


# Restart loops


def restarted(*, back: Instant | None, **facts: Any) -> EndpointObservation:
    look = endpoint("p/2", serving_since=back, **facts)
    look.stats.disappearances.extend([at(960), at(980)])
    return look


def test_restart_loop_is_reported_until_engine_serves_continuously() -> None:
    one = told_of(endpoint(), restarted(back=at(995)))
    assert one.incident is Incident.ENGINE_DOWN
    assert "restarts repeatedly: 2 times in 40 s" in one.sentence

    gone = told_of(endpoint(), restarted(back=None, trouble=EndpointProblem.CONNECTION_REFUSED, probe_fails=True))
    assert "currently it refuses connections" in gone.sentence
    steady = restarted(back=Instant(at(1_000) - STEADY_NS))
    assert find_incident(picture(harm=False, endpoints=(endpoint(), steady))) is None


# Precedence between two causes


def test_cause_harming_callers_takes_precedence_over_a_few_endpoints_being_down() -> None:
    others = [endpoint(f"p/{number}") for number in range(10, 16)]
    down = probed("p/2", EndpointProblem.CONNECTION_REFUSED)

    assert told_of(down, *others, harm=True).incident is Incident.OVERLOAD
    assert told_of(down, *others[:3], harm=True).incident is Incident.ENGINE_DOWN
    failing = told_of(down, *others, harm=True, recent={"failed": 90})
    assert failing.incident is Incident.ENGINE_DOWN
    assert told_of(down, *others, harm=True, queued=0, recent={"rejected": 0}).incident is Incident.SLOW_ENDPOINT


def test_endpoint_down_is_reported_if_no_other_cause_matches() -> None:
    others = [endpoint(f"p/{number}") for number in range(10, 16)]
    few = {"arrivals": 0, "late": 4, "rejected": 0, "judged": 100}
    unknown = picture(
        endpoints=(probed("p/2", EndpointProblem.CONNECTION_REFUSED), *others), recent=few, baseline=picture().recent
    )

    one = find_incident(unknown)

    assert one is not None
    assert one.incident is Incident.ENGINE_DOWN


# Advice


def test_advice_suggests_overrides_only_if_operators_can_set_them() -> None:
    hung = ejected("p/2", EndpointProblem.UNRESPONSIVE)

    assert "headgate operate drain p/2" in told_of(hung, overrides_enabled=True).action
    by_file = told_of(hung).action
    assert "operate" not in by_file
    assert "remove p/2 from pool p of the configuration file and send SIGHUP" in by_file


def test_advice_for_drained_endpoint_does_not_suggest_draining_it_again() -> None:
    hung = ejected("p/2", EndpointProblem.UNRESPONSIVE)
    drained = replace(hung, summary=replace(hung.summary, drained=True))

    action = told_of(drained, overrides_enabled=True).action

    assert "operate drain" not in action
    assert "An operator has already drained it" in action


def test_noisy_tenant_advice_suggests_overrides_only_if_operators_can_set_them() -> None:
    noise = {"arrivals": 300, "tenants": {"acme": 50, "bolt": 250}}

    assert (
        "headgate operate throttle bolt"
        in told_of(endpoint(), harm=True, recent=dict(noise), overrides_enabled=True).action
    )
    by_file = told_of(endpoint(), harm=True, recent=dict(noise)).action
    assert "set limits.requests_per_minute for tenant bolt" in by_file


# Backlog and client timeouts


def test_persistent_backlog_is_reported_as_overload_even_if_targets_are_met() -> None:
    one = told_of(endpoint(), endpoint("p/2"), queued=157, backlog=80)

    assert one.incident is Incident.OVERLOAD
    assert "157 requests are queued, and at least 80" in one.sentence
    assert one.sentence.endswith("Targets are still being met.")
    assert one.action.startswith("No action is needed if the queued work can wait")
    assert find_incident(picture(harm=False, queued=157, backlog=BACKLOG_MIN - 1)) is None


def test_backlog_report_counts_late_requests_below_the_threshold_for_harm() -> None:
    one = told_of(endpoint(), recent={"late": 2, "judged": 89}, queued=157, backlog=80)

    harmed = "2 of 89 requests were late or not served in the last 10 s"
    assert one.sentence.endswith(f" {harmed}; 4 or more count as harm.")
    assert one.evidence[-1].startswith(harmed)


@pytest.mark.parametrize("harm", [False, True])
def test_overload_advice_names_endpoints_max_only_if_the_pool_scales(*, harm: bool) -> None:
    facts: dict[str, Any] = {"harm": harm, "queued": 157, "backlog": 80}

    assert "dd endpoints (raise endpoints_max)." in told_of(endpoint(), **facts, scales=True).action
    fixed = told_of(endpoint(), **facts).action
    assert "dd endpoints." in fixed
    assert "endpoints_max" not in fixed


def test_backlog_report_mentions_that_callers_give_up() -> None:
    # There is no baseline yet, so this cannot be reported as `client_timeouts`.
    unknown: dict[str, Any] = {"baseline": seen(5), "queued": 157, "backlog": 80}
    one = told_of(endpoint(), recent={"gave_up": 70}, **unknown)

    assert one.incident is Incident.OVERLOAD
    assert one.sentence.endswith("Targets are still being met. Callers gave up on 70 requests in 10 s.")
    assert one.evidence[-1] == "0 of 100 requests were late or not served in the last 10 s; callers gave up on 70 more"
    assert one.action.startswith("Add endpoints")
    few = told_of(endpoint(), recent={"gave_up": 10}, **unknown)
    assert few.sentence.endswith("Targets are still being met.")


def test_backlog_is_still_reported_as_overload_if_harm_begins_before_the_usual_load_is_known() -> None:
    one = find_incident(picture(harm=False, recent={"late": 8, "judged": 92}, baseline=seen(5), queued=157, backlog=80))

    assert one is not None
    assert one.incident is Incident.OVERLOAD
    assert one.sentence.endswith(" 8 of 92 requests were late or not served in the last 10 s.")


def test_unusual_number_of_client_cancellations_is_reported_as_an_incident() -> None:
    one = told_of(endpoint(), recent={"gave_up": 40})

    assert one.incident is Incident.CLIENT_TIMEOUTS
    assert "28% of requests, usually 0%" in one.sentence
    assert find_incident(picture(harm=False, recent={"gave_up": 4})) is None
    assert find_incident(picture(harm=False, recent={"gave_up": 10})) is None
    usual = picture().baseline
    usual.gave_up = 400
    assert find_incident(picture(harm=False, recent={"gave_up": 40}, baseline=usual)) is None
    assert told_of(endpoint(), harm=True, recent={"gave_up": 20}).incident is Incident.OVERLOAD
