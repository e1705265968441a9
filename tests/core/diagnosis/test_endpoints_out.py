"""An endpoint that does not serve is an incident of the right kind, with a description of its state."""

from dataclasses import replace
from typing import Any

import pytest

from headgate.core.diagnosis.endpoint_seen import STEADY_NS
from headgate.core.diagnosis.endpoints_out import START_NS
from headgate.core.diagnosis.finding import Found
from headgate.core.diagnosis.patterns import BACKLOG_MIN, found
from headgate.core.diagnosis.picture import EndpointLook
from headgate.model.endpoint import NAME_UNRESOLVED, EndpointState, EndpointTrouble
from headgate.model.units import SECOND, Instant
from headgate.model.verdict import Incident
from testing.builders import at
from tests.core.diagnosis.pictures import endpoint, picture, seen


def told_of(*endpoints: EndpointLook, harm: bool = False, **facts: Any) -> Found:
    one = found(picture(harm=harm, endpoints=endpoints, **facts))
    assert one is not None
    return one


def probed(name: str, trouble: EndpointTrouble, detail: str = "", **facts: Any) -> EndpointLook:
    return endpoint(name, trouble=trouble, detail=detail, probe_fails=True, **facts)


def ejected(name: str, trouble: EndpointTrouble | None, detail: str = "", **facts: Any) -> EndpointLook:
    return endpoint(name, state=EndpointState.EJECTED, trouble=trouble, detail=detail, **facts)


@pytest.mark.parametrize(
    ("trouble", "incident", "words"),
    [
        (EndpointTrouble.REFUSED, Incident.ENGINE_DOWN, "refuses connections: its process is gone"),
        (EndpointTrouble.UNREACHABLE, Incident.ENGINE_DOWN, "cannot be reached (no connection)"),
        (EndpointTrouble.SILENT, Incident.ENGINE_HANG, "accepts connections and does not answer"),
        (EndpointTrouble.LOADING, Incident.ENGINE_DOWN, "has restarted and is still loading"),
        (EndpointTrouble.ERRORS, Incident.ENGINE_FAILING, "fails requests"),
        (EndpointTrouble.KEY_REJECTED, Incident.ENGINE_MISCONFIGURED, "rejects the gateway's key"),
        (EndpointTrouble.MODEL_UNKNOWN, Incident.ENGINE_MISCONFIGURED, "does not serve the model"),
    ],
)
def test_failing_probe_is_reported_although_no_caller_is_harmed(
    trouble: EndpointTrouble, incident: Incident, words: str
) -> None:
    one = told_of(endpoint(), probed("p/2", trouble))

    assert one.incident is incident
    assert one.sentence.startswith(f"Endpoint p/2 of pool p {words}")
    assert one.sentence.endswith("1 of 2 endpoints serve.")


@pytest.mark.parametrize("state", [EndpointState.EJECTED, EndpointState.TRIAL])
def test_ejected_endpoint_keeps_its_incident_open_while_others_serve_all(state: EndpointState) -> None:
    hung = endpoint("p/2", state=state, trouble=EndpointTrouble.SILENT, detail="no token in time")
    one = told_of(endpoint(), hung, late={"attempts_failed": 0})

    assert one.incident is Incident.ENGINE_HANG
    trial = "is on trial: its probe passes; its last failure was that it accepts connections and does not answer"
    assert (trial in one.sentence) == (state is EndpointState.TRIAL)
    assert "0 of" not in one.sentence


def test_detail_of_a_failure_is_shown() -> None:
    one = told_of(endpoint(), ejected("p/2", EndpointTrouble.ERRORS, "HTTP 500"))

    assert "fails requests (HTTP 500)" in one.sentence
    assert told_of(ejected("p/2", None)).incident is Incident.ENGINE_FAILING


def test_advice_names_all_engines_to_restart() -> None:
    down = [probed(f"p/{number}", EndpointTrouble.REFUSED) for number in range(5)]

    assert told_of(*down[:1]).action.startswith("Restart the engine of p/0 and check its log")
    assert told_of(*down[:2]).action.startswith("Restart the engines of p/0, p/1 and check their logs")
    assert told_of(*down).action.startswith("Restart the engines of p/0, p/1, p/2, … and check their logs")


def test_advice_for_an_unresolved_host_name_is_to_correct_the_name() -> None:
    detail = f"GET /health failed: {NAME_UNRESOLVED}"
    unnamed = probed("p/a.test:8081", EndpointTrouble.UNREACHABLE, detail)

    assert told_of(endpoint(), unnamed).action.startswith("Check the DNS record of the host of p/a.test:8081")
    down = [probed(f"p/{number}", EndpointTrouble.REFUSED) for number in (1, 2)]
    assert told_of(*down, unnamed).action.startswith("Restart the engines of p/1, p/2, p/a.test:8081")


def test_incident_shared_by_most_endpoints_is_reported() -> None:
    refused = [probed(f"p/{number}", EndpointTrouble.REFUSED) for number in range(4)]
    one = told_of(*refused, ejected("p/9", EndpointTrouble.SILENT))

    assert one.incident is Incident.ENGINE_DOWN
    assert one.sentence.startswith("4 endpoints of pool p do not serve (p/0, p/1, p/2, …): p/0 refuses connections")
    assert one.sentence.endswith("0 of 5 endpoints serve.")
    of_two = (refused[0], ejected("p/9", EndpointTrouble.SILENT))
    assert told_of(*of_two).incident is Incident.ENGINE_DOWN
    assert told_of(*of_two, told=Incident.ENGINE_HANG).incident is Incident.ENGINE_HANG
    assert told_of(*refused[:2]).sentence.startswith("2 endpoints of pool p do not serve (p/0, p/1): p/0 refuses")


def test_failing_probes_of_a_leaving_endpoint_are_no_incident() -> None:
    assert found(picture(harm=False, endpoints=(probed("p/2", EndpointTrouble.REFUSED, leaving=True),))) is None


# Starting


def starting(trouble: EndpointTrouble, *, joined: Instant) -> EndpointLook:
    facts: dict[str, Any] = {"readied_at": None, "joined_at": joined, "open": 0, "decoding": 0}
    return probed("p/2", trouble, state=EndpointState.WARMING, **facts)


def test_engine_that_was_down_from_the_start_is_down_and_not_starting() -> None:
    refused = starting(EndpointTrouble.REFUSED, joined=at(0))

    one = told_of(refused, now=at(40))
    assert one.incident is Incident.ENGINE_DOWN
    assert "has refused connections since it was added 40 s ago" in one.sentence
    assert found(picture(harm=False, endpoints=(refused,), now=Instant(at(0) + START_NS - SECOND))) is None
    early = picture(harm=False, endpoints=(refused,), now=at(2), late={"missing": 1})
    assert found(early) is not None
    assert told_of(starting(EndpointTrouble.SILENT, joined=at(0)), now=at(40)).incident is Incident.ENGINE_HANG
    unreachable = told_of(starting(EndpointTrouble.UNREACHABLE, joined=at(0)), now=at(40))
    assert "has not been reachable" in unreachable.sentence


def test_endpoint_that_joins_later_is_not_reported_during_a_cold_start() -> None:
    refused = starting(EndpointTrouble.REFUSED, joined=at(500))

    assert found(picture(harm=False, endpoints=(endpoint(), refused), now=at(600))) is None
    assert told_of(endpoint(), refused, now=at(621)).incident is Incident.ENGINE_DOWN


def test_endpoint_that_loads_for_a_long_time_is_a_cold_start() -> None:
    one = told_of(endpoint(), starting(EndpointTrouble.LOADING, joined=at(0)), now=at(60))

    assert one.incident is Incident.COLD_START
    assert "has been loading for" in one.sentence


def test_misconfigured_engine_is_reported_immediately() -> None:
    one = told_of(starting(EndpointTrouble.KEY_REJECTED, joined=at(999)))
    model = told_of(starting(EndpointTrouble.MODEL_UNKNOWN, joined=at(999)))

    assert one.incident is model.incident is Incident.ENGINE_MISCONFIGURED
    assert "Set api_key of pool p" in one.action
    assert "Set served_model of pool p" in model.action


# Restarting


def restarted(*, back: Instant | None, **facts: Any) -> EndpointLook:
    look = endpoint("p/2", back_at=back, **facts)
    look.seen.outs.extend([at(960), at(980)])
    return look


def test_restart_loop_is_reported_until_the_engine_is_steady() -> None:
    one = told_of(endpoint(), restarted(back=at(995)))
    assert one.incident is Incident.ENGINE_DOWN
    assert "restarts repeatedly: 2 times in 40 s" in one.sentence

    gone = told_of(endpoint(), restarted(back=None, trouble=EndpointTrouble.REFUSED, probe_fails=True))
    assert "at the moment it refuses connections" in gone.sentence
    steady = restarted(back=Instant(at(1_000) - STEADY_NS))
    assert found(picture(harm=False, endpoints=(endpoint(), steady))) is None


# Choice between two causes


def test_cause_that_harms_more_callers_outranks_a_few_endpoints_that_do_not_serve() -> None:
    others = [endpoint(f"p/{number}") for number in range(10, 16)]
    down = probed("p/2", EndpointTrouble.REFUSED)

    assert told_of(down, *others, harm=True).incident is Incident.OVERLOAD
    assert told_of(down, *others[:3], harm=True).incident is Incident.ENGINE_DOWN
    failing = told_of(down, *others, harm=True, late={"failed": 90})
    assert failing.incident is Incident.ENGINE_DOWN
    assert told_of(down, *others, harm=True, queued=0, late={"refused": 0}).incident is Incident.SLOW_ENDPOINT


def test_endpoint_that_is_down_is_reported_if_no_other_cause_fits() -> None:
    others = [endpoint(f"p/{number}") for number in range(10, 16)]
    few = {"arrivals": 0, "late": 4, "refused": 0, "judged": 100}
    unknown = picture(endpoints=(probed("p/2", EndpointTrouble.REFUSED), *others), late=few, usual=picture().late)

    one = found(unknown)

    assert one is not None
    assert one.incident is Incident.ENGINE_DOWN


# Advice


def test_advice_names_orders_only_if_operators_can_place_them() -> None:
    hung = ejected("p/2", EndpointTrouble.SILENT)

    assert "headgate operate drain p/2" in told_of(hung, operable=True).action
    by_file = told_of(hung).action
    assert "operate" not in by_file
    assert "remove p/2 from pool p of the configuration file and send SIGHUP" in by_file


def test_advice_for_an_endpoint_that_an_operator_has_drained_does_not_repeat_the_order() -> None:
    hung = ejected("p/2", EndpointTrouble.SILENT)
    drained = replace(hung, summary=replace(hung.summary, drained=True))

    action = told_of(drained, operable=True).action

    assert "operate drain" not in action
    assert "An operator has taken it out already" in action


def test_advice_on_a_noisy_tenant_names_orders_only_if_operators_can_place_them() -> None:
    noise = {"arrivals": 300, "tenants": {"acme": 50, "bolt": 250}}

    assert "headgate operate throttle bolt" in told_of(endpoint(), harm=True, late=dict(noise), operable=True).action
    by_file = told_of(endpoint(), harm=True, late=dict(noise)).action
    assert "set limits.requests_per_minute of tenant bolt" in by_file


# Demand above capacity, and callers who give up


def test_backlog_that_never_drains_is_an_overload_although_targets_are_met() -> None:
    one = told_of(endpoint(), endpoint("p/2"), queued=157, backlog=80)

    assert one.incident is Incident.OVERLOAD
    assert "157 requests wait, and never fewer than 80" in one.sentence
    assert one.sentence.endswith("Targets are met so far.")
    assert one.action.startswith("No action if the queued work can wait")
    assert found(picture(harm=False, queued=157, backlog=BACKLOG_MIN - 1)) is None


def test_backlog_report_says_that_callers_give_up() -> None:
    # Nothing is usual yet, so this cannot be reported as `client_timeouts`.
    unknown: dict[str, Any] = {"usual": seen(5), "queued": 157, "backlog": 80}
    one = told_of(endpoint(), late={"gave_up": 70}, **unknown)

    assert one.incident is Incident.OVERLOAD
    assert one.sentence.endswith("Targets are met so far, but callers gave up on 70 requests in 10 s.")
    assert one.evidence[-1] == "0 of 100 requests were late or not served in 10 s; callers gave up on 70 more"
    assert one.action.startswith("Add endpoints")
    few = told_of(endpoint(), late={"gave_up": 10}, **unknown)
    assert few.sentence.endswith("Targets are met so far.")


def test_backlog_stays_an_overload_if_harm_begins_before_the_usual_load_is_known() -> None:
    one = found(picture(harm=False, late={"late": 8, "judged": 92}, usual=seen(5), queued=157, backlog=80))

    assert one is not None
    assert one.incident is Incident.OVERLOAD
    assert "8 requests were late or not served in 10 s." in one.sentence


def test_callers_giving_up_more_often_than_usual_are_an_incident() -> None:
    one = told_of(endpoint(), late={"gave_up": 40})

    assert one.incident is Incident.CLIENT_TIMEOUTS
    assert "28% of requests, usually 0%" in one.sentence
    assert found(picture(harm=False, late={"gave_up": 4})) is None
    assert found(picture(harm=False, late={"gave_up": 10})) is None
    usual = picture().usual
    usual.gave_up = 400
    assert found(picture(harm=False, late={"gave_up": 40}, usual=usual)) is None
    assert told_of(endpoint(), harm=True, late={"gave_up": 20}).incident is Incident.OVERLOAD
