"""Finds endpoints that are not serving, and why.

An endpoint that fails its probes, is ejected or is on trial is an incident even if no caller is affected, because the
other endpoints have to carry its load. The incident lasts until the endpoint serves again, not until requests are
routed around it. An endpoint that has just joined may be starting, so it gets a grace period.

If several endpoints are not serving, the most common incident among them is reported.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from headgate.core.diagnosis.finding import IncidentFinding, callers_harmed, counted, failures_evidence
from headgate.core.diagnosis.pool_observation import EndpointObservation, PoolObservation
from headgate.model.endpoint import NAME_UNRESOLVED, EndpointProblem, EndpointState
from headgate.model.units import SECOND, Duration, format_seconds
from headgate.model.verdict import Incident

SILENT_NS: Final = Duration(5 * SECOND)
"""Silence after which an endpoint is considered hung if at least `SILENT_STREAMS` of its streams have started."""
SILENT_STREAMS: Final = 3
TWO_SILENT_NS: Final = Duration(10 * SECOND)
ONE_SILENT_NS: Final = Duration(20 * SECOND)
"""Silence after which an endpoint is considered hung with two started streams, and with fewer. These timeouts are
longer because an engine may buffer a tool call until it is complete, and because a long prompt takes time."""
PREFILL_TIMES: Final = 4
"""Allowed silence during prefills, as a multiple of the prompts' prefill time at the pool's speed."""
FAILURES: Final = 3
FAILING_NS: Final = Duration(15 * SECOND)
"""Number of consecutive failures that count as an incident if callers are harmed or the failures last `FAILING_NS`."""
FAILED_AGO_NS_MAX: Final = Duration(10 * SECOND)
"""Time without a new failure after which a series of failures is over, even if no request has succeeded since."""
START_NS: Final = Duration(5 * SECOND)
"""Maximum time to the first passing probe for endpoints known since the gateway started."""
NAMED_MAX: Final = 3
MINOR_PERCENT: Final = 20
"""Percentage of non-serving endpoints below which any other cause of harm is reported first."""

_INCIDENTS: Final = {
    EndpointProblem.CONNECTION_REFUSED: Incident.ENGINE_DOWN,
    EndpointProblem.UNREACHABLE: Incident.ENGINE_DOWN,
    EndpointProblem.UNRESPONSIVE: Incident.ENGINE_HANG,
    EndpointProblem.LOADING: Incident.ENGINE_DOWN,
    EndpointProblem.ERRORS: Incident.ENGINE_FAILING,
    EndpointProblem.KEY_REJECTED: Incident.ENGINE_MISCONFIGURED,
    EndpointProblem.MODEL_UNKNOWN: Incident.ENGINE_MISCONFIGURED,
}
_ORDER: Final = (
    Incident.ENGINE_DOWN,
    Incident.ENGINE_HANG,
    Incident.ENGINE_MISCONFIGURED,
    Incident.ENGINE_FAILING,
    Incident.COLD_START,
)
"""Order of precedence among incidents that affect the same number of endpoints."""


class DownEndpoint(NamedTuple):
    """An endpoint that is not serving. `description` is a phrase about its state that follows its name."""

    observation: EndpointObservation
    incident: Incident
    description: str


def endpoints_down(picture: PoolObservation) -> IncidentFinding | None:
    outs = [out for each in picture.endpoints if (out := _down(each, picture)) is not None]
    if not outs:
        return None
    counts = {incident: sum(each.incident is incident for each in outs) for incident in _ORDER}
    incident = max(_ORDER, key=lambda each: (counts[each], each is picture.reported, -_ORDER.index(each)))
    of = [each for each in outs if each.incident is incident]
    names = {each.observation.summary.id for each in outs}
    serving = sum(each.summary.id not in names for each in picture.serving)
    present = _present_count(picture)
    verb = "is" if 1 in {serving, present} else "are"
    rest = f"{serving} of {counted(present, 'endpoint')} {verb} serving"
    return IncidentFinding(
        incident,
        f"{_sentence(of, picture)}; {rest}.",
        (
            *(_evidence(each) for each in of[:NAMED_MAX]),
            f"{rest}; {failures_evidence(picture)}",
        ),
        _ACTIONS[incident](of, picture),
    )


def is_minor(picture: PoolObservation) -> bool:
    """Returns whether callers are harmed mostly by something other than the non-serving endpoints."""
    late = picture.recent
    if not callers_harmed(picture) or 2 * (late.failed + late.missing) >= late.bad:
        return False
    outs = sum(_down(each, picture) is not None for each in picture.endpoints)
    return 100 * outs < MINOR_PERCENT * _present_count(picture)


def _present_count(picture: PoolObservation) -> int:
    return sum(not each.summary.leaving for each in picture.endpoints)


# State of one endpoint


def _down(endpoint: EndpointObservation, picture: PoolObservation) -> DownEndpoint | None:
    summary, seen = endpoint.summary, endpoint.stats
    if summary.leaving:
        return None
    if seen.restarts(picture.now) and (endpoint.is_down or not seen.is_steady(picture.now)):
        return DownEndpoint(endpoint, Incident.ENGINE_DOWN, _restart_loop(endpoint, picture))
    if summary.trouble is not None and _is_starting(endpoint):
        return _startup_problem(endpoint, picture)
    if endpoint.silent_ns >= _silence_allowed_ns(endpoint):
        streams = "1 stream is" if seen.open_streams == 1 else f"{seen.open_streams} streams are"
        words = f"has sent no token for {format_seconds(endpoint.silent_ns)} though {streams} open"
        return DownEndpoint(
            endpoint, _INCIDENTS.get(summary.trouble or EndpointProblem.UNRESPONSIVE, Incident.ENGINE_HANG), words
        )
    if endpoint.is_down:
        incident = Incident.ENGINE_FAILING if summary.trouble is None else _INCIDENTS[summary.trouble]
        return DownEndpoint(endpoint, incident, _describe(endpoint))
    # A failed attempt that is retried successfully harms no caller unless the failures continue.
    lasting = seen.failed_at - seen.failing_since >= FAILING_NS or callers_harmed(picture)
    if seen.failures >= FAILURES and lasting and picture.now - seen.failed_at <= FAILED_AGO_NS_MAX:
        words = f"has failed {seen.failures} times in a row"
        return DownEndpoint(endpoint, Incident.ENGINE_HANG if seen.failed_silently else Incident.ENGINE_FAILING, words)
    return None


def _is_starting(endpoint: EndpointObservation) -> bool:
    """Returns whether the endpoint has never served but, according to its probe, is still starting."""
    never = endpoint.stats.readied_at is None and endpoint.summary.state is EndpointState.WARMING
    return (
        never and _INCIDENTS[endpoint.summary.trouble or EndpointProblem.LOADING] is not Incident.ENGINE_MISCONFIGURED
    )


def _startup_problem(endpoint: EndpointObservation, picture: PoolObservation) -> DownEndpoint | None:
    joined_at = endpoint.stats.joined_at
    waited = Duration(picture.now - joined_at)
    with_gateway = joined_at - picture.first_look_at <= START_NS
    allowed = START_NS if with_gateway else picture.cold_start_ns
    if waited < allowed and not (with_gateway and picture.recent.missing):
        return None
    if endpoint.summary.trouble is EndpointProblem.LOADING:
        return DownEndpoint(endpoint, Incident.COLD_START, f"has been loading for {format_seconds(waited)}")
    how = {
        EndpointProblem.CONNECTION_REFUSED: "has refused connections",
        EndpointProblem.UNRESPONSIVE: "has accepted connections but not responded",
    }.get(endpoint.summary.trouble or EndpointProblem.UNREACHABLE, "has been unreachable")
    words = f"{how} since it was added {format_seconds(waited)} ago: its engine is not running or its address is wrong"
    return DownEndpoint(endpoint, _INCIDENTS[endpoint.summary.trouble or EndpointProblem.UNREACHABLE], words)


def _restart_loop(endpoint: EndpointObservation, picture: PoolObservation) -> str:
    count, since = endpoint.stats.restarts(picture.now), endpoint.stats.disappearances[0]
    how = f"restarts repeatedly: {count} times in {format_seconds(Duration(picture.now - since))}"
    return f"{how}; currently it {_describe(endpoint)}" if endpoint.summary.trouble is not None else how


def _describe(endpoint: EndpointObservation) -> str:
    """Returns a phrase about the endpoint's state that follows its name."""
    summary = endpoint.summary
    match summary.trouble:
        case EndpointProblem.CONNECTION_REFUSED:
            words = "refuses connections: its process has exited or listens on another address"
        case EndpointProblem.UNREACHABLE:
            words = f"cannot be reached ({summary.trouble_detail or 'no connection'})"
        case EndpointProblem.UNRESPONSIVE:
            words = "accepts connections but does not respond"
        case EndpointProblem.LOADING:
            words = "has restarted and is still loading"
        case EndpointProblem.KEY_REJECTED:
            words = "rejects the gateway's key"
        case EndpointProblem.MODEL_UNKNOWN:
            words = "does not serve the model it is configured for"
        case _:
            words = f"fails requests ({summary.trouble_detail})" if summary.trouble_detail else "fails requests"
    if summary.probe_fails:
        return words
    if summary.state is EndpointState.TRIAL:
        return f"is on trial: its probe passes; its last failure was that it {words}"
    return words


def _silence_allowed_ns(endpoint: EndpointObservation) -> Duration:
    seen = endpoint.stats
    prefill_ns = PREFILL_TIMES * seen.pending_prefill_at_progress_ns
    if seen.decoding >= SILENT_STREAMS:
        return Duration(max(SILENT_NS, prefill_ns))
    if seen.decoding > 1:
        return Duration(max(TWO_SILENT_NS, prefill_ns))
    return Duration(ONE_SILENT_NS + prefill_ns)


# Messages


def _sentence(outs: Sequence[DownEndpoint], picture: PoolObservation) -> str:
    first = outs[0]
    if len(outs) == 1:
        return f"Endpoint {first.observation.summary.id} in pool {picture.pool} {first.description}"
    name = first.observation.summary.id
    return f"{len(outs)} endpoints in pool {picture.pool} are not serving ({_names(outs)}): {name} {first.description}"


def _names(outs: Sequence[DownEndpoint]) -> str:
    names = ", ".join(each.observation.summary.id for each in outs[:NAMED_MAX])
    return names + (", …" if len(outs) > NAMED_MAX else "")


def _evidence(out: DownEndpoint) -> str:
    summary = out.observation.summary
    probe = f"probe: {summary.trouble_detail}" if summary.probe_fails else "its probe passes"
    in_flight = f"{counted(summary.in_flight, 'request')} in flight"
    return f"{summary.id}: {summary.state}, {out.description}; {probe}; {in_flight}"


def _restart_advice(outs: Sequence[DownEndpoint], picture: PoolObservation) -> str:
    if len(outs) > 1:
        return (
            f"Restart the engines of {_names(outs)} and check their logs to see why they exited. If they are "
            f"running, correct their addresses in pool {picture.pool} of the configuration file and send SIGHUP to the "
            "gateway. Each endpoint gets requests again within seconds of its recovery."
        )
    out = outs[0]
    if NAME_UNRESOLVED in out.observation.summary.trouble_detail:
        return (
            f"Check the DNS record of the host of {out.observation.summary.id}. If the host has a new name, correct it "
            f"in pool {picture.pool} of the configuration file and send SIGHUP to the gateway. The endpoint gets "
            "requests again within seconds of the name resolving."
        )
    return (
        f"Restart the engine of {out.observation.summary.id} and check its log to see why it exited. If it is "
        f"running, correct its address in pool {picture.pool} of the configuration file and send SIGHUP to the "
        "gateway. The endpoint gets requests again within seconds of its recovery."
    )


def _drain_and_restart_advice(outs: Sequence[DownEndpoint], picture: PoolObservation) -> str:
    return f"{drain_advice(outs[0].observation, picture)} Save its engine's log, then restart the engine."


def _configure_advice(outs: Sequence[DownEndpoint], picture: PoolObservation) -> str:
    setting = "api_key" if outs[0].observation.summary.trouble is EndpointProblem.KEY_REJECTED else "served_model"
    what = "the engine's key" if setting == "api_key" else "a name that the engine serves"
    return (
        f"Set {setting} of pool {picture.pool} in the configuration file to {what}, check it with `headgate doctor`, "
        "and send SIGHUP to the gateway."
    )


def _read_log_advice(outs: Sequence[DownEndpoint], picture: PoolObservation) -> str:
    return (
        f"Read the engine log of {outs[0].observation.summary.id} and revert the last change to the engine or the "
        f"model. {drain_advice(outs[0].observation, picture)}"
    )


def _wait_advice(outs: Sequence[DownEndpoint], picture: PoolObservation) -> str:
    return (
        f"Wait until {outs[0].observation.summary.id} has loaded its model. If that takes longer than usual, read its "
        f"engine log. To avoid this in the future, raise warm_endpoints_min for pool {picture.pool}."
    )


def drain_advice(endpoint: EndpointObservation, picture: PoolObservation) -> str:
    """Returns advice on how to stop sending requests to an endpoint in this deployment."""
    name = endpoint.summary.id
    if endpoint.summary.drained:
        return "An operator has already drained it (`headgate operate list`)."
    if picture.overrides_enabled:
        return f"Drain it for now: `headgate operate drain {name} --for 1h`."
    return (
        f"To stop sending requests to it, remove {name} from pool {picture.pool} of the configuration file and send "
        "SIGHUP to the gateway."
    )


_ACTIONS: Final[dict[Incident, Callable[[Sequence[DownEndpoint], PoolObservation], str]]] = {
    Incident.ENGINE_DOWN: _restart_advice,
    Incident.ENGINE_HANG: _drain_and_restart_advice,
    Incident.ENGINE_MISCONFIGURED: _configure_advice,
    Incident.ENGINE_FAILING: _read_log_advice,
    Incident.COLD_START: _wait_advice,
}
