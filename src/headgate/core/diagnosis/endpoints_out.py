"""Which endpoints of a pool do not serve, and in which state is each?

An endpoint that fails its probes, is ejected or on trial is an incident, even if no caller notices it: the other
endpoints carry its work, and there are fewer of them. The incident lasts until the endpoint serves again, not until
requests are routed around it. An endpoint that has only just joined may be starting, so it gets a grace period.

If several endpoints do not serve, the incident that most of them have is reported.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from headgate.core.diagnosis.finding import Found, attempts_failed, harmed
from headgate.core.diagnosis.picture import EndpointLook, Picture
from headgate.model.endpoint import NAME_UNRESOLVED, EndpointState, EndpointTrouble
from headgate.model.units import SECOND, Duration, seconds
from headgate.model.verdict import Incident

SILENT_NS: Final = Duration(5 * SECOND)
"""An endpoint hangs if several of its streams are open and none of them has sent anything for this long."""
SILENT_STREAMS: Final = 3
TWO_SILENT_NS: Final = Duration(10 * SECOND)
ONE_SILENT_NS: Final = Duration(20 * SECOND)
"""The same limit for two streams, and for an endpoint with one or no stream that has begun: an engine may hold back a
tool call until it is complete, and a long prompt takes a while."""
PREFILL_TIMES: Final = 4
"""Streams may pause while prompts are computed, up to this multiple of the prompts' time at the pool's speed."""
FAILURES: Final = 3
FAILING_NS: Final = Duration(15 * SECOND)
"""`FAILURES` failures in a row are an incident if callers are harmed, or if the failures go on for this long."""
FAILED_AGO_NS_MAX: Final = Duration(10 * SECOND)
"""The failures are over after this time without a new one, even if no request has come that could succeed."""
START_NS: Final = Duration(5 * SECOND)
"""The time that an endpoint known since the gateway's own start has until its probe passes."""
NAMED_MAX: Final = 3
MINOR_PERCENT: Final = 20
"""If a smaller percentage of a pool's endpoints does not serve, another cause that harms callers is reported first."""

_INCIDENTS: Final = {
    EndpointTrouble.REFUSED: Incident.ENGINE_DOWN,
    EndpointTrouble.UNREACHABLE: Incident.ENGINE_DOWN,
    EndpointTrouble.SILENT: Incident.ENGINE_HANG,
    EndpointTrouble.LOADING: Incident.ENGINE_DOWN,
    EndpointTrouble.ERRORS: Incident.ENGINE_FAILING,
    EndpointTrouble.KEY_REJECTED: Incident.ENGINE_MISCONFIGURED,
    EndpointTrouble.MODEL_UNKNOWN: Incident.ENGINE_MISCONFIGURED,
}
_ORDER: Final = (
    Incident.ENGINE_DOWN,
    Incident.ENGINE_HANG,
    Incident.ENGINE_MISCONFIGURED,
    Incident.ENGINE_FAILING,
    Incident.COLD_START,
)
"""The precedence of incidents that equally many endpoints have."""


class Out(NamedTuple):
    """An endpoint that does not serve."""

    look: EndpointLook
    incident: Incident
    words: str


def endpoints_out(picture: Picture) -> Found | None:
    outs = [out for each in picture.endpoints if (out := _out(each, picture)) is not None]
    if not outs:
        return None
    counts = {incident: sum(each.incident is incident for each in outs) for incident in _ORDER}
    incident = max(_ORDER, key=lambda each: (counts[each], each is picture.told, -_ORDER.index(each)))
    of = [each for each in outs if each.incident is incident]
    names = {each.look.summary.id for each in outs}
    serving = sum(each.summary.id not in names for each in picture.serving)
    rest = f"{serving} of {_there(picture)} endpoints serve"
    return Found(
        incident,
        f"{_sentence(of, picture)}; {rest}.",
        (
            *(_evidence(each) for each in of[:NAMED_MAX]),
            f"{rest}; {attempts_failed(picture)}",
        ),
        _ACTIONS[incident](of, picture),
    )


def is_minor(picture: Picture) -> bool:
    """Whether callers are harmed, and mostly by something other than the endpoints that do not serve."""
    late = picture.late
    if not harmed(picture) or 2 * (late.failed + late.missing) >= late.bad:
        return False
    outs = sum(_out(each, picture) is not None for each in picture.endpoints)
    return 100 * outs < MINOR_PERCENT * _there(picture)


def _there(picture: Picture) -> int:
    return sum(not each.summary.leaving for each in picture.endpoints)


# The state of one endpoint


def _out(each: EndpointLook, picture: Picture) -> Out | None:
    summary, seen = each.summary, each.seen
    if summary.leaving:
        return None
    if seen.restarts(picture.now) and (each.out or not seen.steady(picture.now)):
        return Out(each, Incident.ENGINE_DOWN, _restarting(each, picture))
    if summary.trouble is not None and _is_starting(each):
        return _starting(each, picture)
    if each.silent_ns >= _silence_allowed_ns(each):
        streams = "1 stream is" if seen.open == 1 else f"{seen.open} streams are"
        words = f"has sent no token for {seconds(each.silent_ns)} though {streams} open"
        return Out(each, _INCIDENTS.get(summary.trouble or EndpointTrouble.SILENT, Incident.ENGINE_HANG), words)
    if each.out:
        incident = Incident.ENGINE_FAILING if summary.trouble is None else _INCIDENTS[summary.trouble]
        return Out(each, incident, _words(each))
    # A failure that is answered elsewhere harms no caller, unless it goes on.
    lasting = seen.failed_at - seen.failing_since >= FAILING_NS or harmed(picture)
    if seen.failures >= FAILURES and lasting and picture.now - seen.failed_at <= FAILED_AGO_NS_MAX:
        words = f"has failed {seen.failures} times in a row"
        return Out(each, Incident.ENGINE_HANG if seen.failed_silently else Incident.ENGINE_FAILING, words)
    return None


def _is_starting(each: EndpointLook) -> bool:
    """Whether it has never served, and its probe does not rule out that it will."""
    never = each.seen.readied_at is None and each.summary.state is EndpointState.WARMING
    return never and _INCIDENTS[each.summary.trouble or EndpointTrouble.LOADING] is not Incident.ENGINE_MISCONFIGURED


def _starting(each: EndpointLook, picture: Picture) -> Out | None:
    joined_at = each.seen.joined_at
    waited = Duration(picture.now - joined_at)
    with_gateway = joined_at - picture.began <= START_NS
    allowed = START_NS if with_gateway else picture.cold_start_ns
    if waited < allowed and not (with_gateway and picture.late.missing):
        return None
    if each.summary.trouble is EndpointTrouble.LOADING:
        return Out(each, Incident.COLD_START, f"has been loading for {seconds(waited)}")
    how = {
        EndpointTrouble.REFUSED: "has refused connections",
        EndpointTrouble.SILENT: "has accepted connections without an answer",
    }.get(each.summary.trouble or EndpointTrouble.UNREACHABLE, "has not been reachable")
    words = f"{how} since it was added {seconds(waited)} ago: its engine does not run, or its address is wrong"
    return Out(each, _INCIDENTS[each.summary.trouble or EndpointTrouble.UNREACHABLE], words)


def _restarting(each: EndpointLook, picture: Picture) -> str:
    count, since = each.seen.restarts(picture.now), each.seen.outs[0]
    how = f"restarts repeatedly: {count} times in {seconds(Duration(picture.now - since))}"
    return f"{how}; at the moment it {_words(each)}" if each.summary.trouble is not None else how


def _words(each: EndpointLook) -> str:
    """The state of an endpoint, as words that follow its name."""
    summary = each.summary
    match summary.trouble:
        case EndpointTrouble.REFUSED:
            words = "refuses connections: its process is gone, or it listens at another address"
        case EndpointTrouble.UNREACHABLE:
            words = f"cannot be reached ({summary.trouble_detail or 'no connection'})"
        case EndpointTrouble.SILENT:
            words = "accepts connections and does not answer"
        case EndpointTrouble.LOADING:
            words = "has restarted and is still loading"
        case EndpointTrouble.KEY_REJECTED:
            words = "rejects the gateway's key"
        case EndpointTrouble.MODEL_UNKNOWN:
            words = "does not serve the model it is configured for"
        case _:
            words = f"fails requests ({summary.trouble_detail})" if summary.trouble_detail else "fails requests"
    if summary.probe_fails:
        return words
    if summary.state is EndpointState.TRIAL:
        return f"is on trial: its probe passes; its last failure was that it {words}"
    return words


def _silence_allowed_ns(each: EndpointLook) -> Duration:
    seen = each.seen
    prefill_ns = PREFILL_TIMES * seen.awaited_ns
    if seen.decoding >= SILENT_STREAMS:
        return Duration(max(SILENT_NS, prefill_ns))
    if seen.decoding > 1:
        return Duration(max(TWO_SILENT_NS, prefill_ns))
    return Duration(ONE_SILENT_NS + prefill_ns)


# Messages


def _sentence(outs: Sequence[Out], picture: Picture) -> str:
    first = outs[0]
    if len(outs) == 1:
        return f"Endpoint {first.look.summary.id} of pool {picture.pool} {first.words}"
    name = first.look.summary.id
    return f"{len(outs)} endpoints of pool {picture.pool} do not serve ({_names(outs)}): {name} {first.words}"


def _names(outs: Sequence[Out]) -> str:
    names = ", ".join(each.look.summary.id for each in outs[:NAMED_MAX])
    return names + (", …" if len(outs) > NAMED_MAX else "")


def _evidence(out: Out) -> str:
    summary = out.look.summary
    probe = f"probe: {summary.trouble_detail}" if summary.probe_fails else "its probe does not fail"
    return f"{summary.id}: {summary.state}, {out.words}; {probe}; {summary.in_flight} requests in flight"


def _start_again(outs: Sequence[Out], picture: Picture) -> str:
    if len(outs) > 1:
        return (
            f"Restart the engines of {_names(outs)} and check their logs for why they ended; if they are running, "
            f"correct their addresses in pool {picture.pool} of the configuration file and send SIGHUP to the gateway. "
            "Each serves again within seconds of its return."
        )
    out = outs[0]
    if NAME_UNRESOLVED in out.look.summary.trouble_detail:
        return (
            f"Check the DNS record of the host of {out.look.summary.id}; if the host has another name now, correct it "
            f"in pool {picture.pool} of the configuration file and send SIGHUP to the gateway. It serves again within "
            "seconds of the return of its name."
        )
    return (
        f"Restart the engine of {out.look.summary.id} and check its log for why it ended; if it is running, correct "
        f"its address in pool {picture.pool} of the configuration file and send SIGHUP to the gateway. It serves again "
        "within seconds of its return."
    )


def _restart(outs: Sequence[Out], picture: Picture) -> str:
    return f"{take_out(outs[0].look, picture)} Restart its engine and keep its log."


def _configure(outs: Sequence[Out], picture: Picture) -> str:
    setting = "api_key" if outs[0].look.summary.trouble is EndpointTrouble.KEY_REJECTED else "served_model"
    what = "the engine's key" if setting == "api_key" else "a name that the engine serves"
    return (
        f"Set {setting} of pool {picture.pool} in the configuration file to {what}, check it with `headgate doctor`, "
        "and send SIGHUP to the gateway."
    )


def _read_log(outs: Sequence[Out], picture: Picture) -> str:
    return (
        f"Read the log of the engine of {outs[0].look.summary.id} and take back the last change to engine or model. "
        f"{take_out(outs[0].look, picture)}"
    )


def _wait(outs: Sequence[Out], picture: Picture) -> str:
    return (
        f"Wait until {outs[0].look.summary.id} has loaded its model, and read its engine's log if that takes longer "
        f"than usual; for the next time raise warm_min of pool {picture.pool}."
    )


def take_out(each: EndpointLook, picture: Picture) -> str:
    """Advice on how to stop sending requests to an endpoint, in a way that works in this deployment."""
    name = each.summary.id
    if each.summary.drained:
        return "An operator has taken it out already (`headgate operate list`)."
    if picture.operable:
        return f"Take it out meanwhile: `headgate operate drain {name} --for 1h`."
    return (
        f"To take it out meanwhile, remove {name} from pool {picture.pool} of the configuration file and send SIGHUP "
        "to the gateway."
    )


_ACTIONS: Final[dict[Incident, Callable[[Sequence[Out], Picture], str]]] = {
    Incident.ENGINE_DOWN: _start_again,
    Incident.ENGINE_HANG: _restart,
    Incident.ENGINE_MISCONFIGURED: _configure,
    Incident.ENGINE_FAILING: _read_log,
    Incident.COLD_START: _wait,
}
