"""Are the addresses to listen on free, or does a gateway already run there, and with this configuration?"""

import errno
from dataclasses import dataclass, field

import aiohttp

from headgate.cli.checkup.clock import Heard, heard_at
from headgate.cli.checkup.finding import Finding, note, ok, problem
from headgate.cli.output.status import EndpointState, GatewayStatus, NotAGateway, ask, url_of
from headgate.config.quantities import address_text
from headgate.config.settings import Address, Settings
from headgate.edge.server import bind
from headgate.engines.page import Unheard, get_page

_TIMEOUT_S = 2.0
_REASONS = {
    errno.EADDRNOTAVAIL: ("no network of this machine has it", "use an address of this machine, or 0.0.0.0 for all"),
    errno.EACCES: ("this user may not listen there", "use a port above 1023"),
}


@dataclass(slots=True)
class Listeners:
    findings: list[Finding] = field(default_factory=list[Finding])
    heard: Heard | None = None
    """What the clock of the gateway that runs there said."""


async def look_at_listeners(settings: Settings, session: aiohttp.ClientSession) -> Listeners:
    found = Listeners()
    admin_why, door_why = _why_not(settings.admin_listen), _why_not(settings.listen)
    running: GatewayStatus | None = None
    if admin_why == errno.EADDRINUSE:
        running = await _running(settings.admin_listen, session)
    if running is not None:
        found.findings += _gateway(running, settings)
    else:
        found.findings.append(_address("admin_listen", settings.admin_listen, admin_why))
    if running is not None and door_why == errno.EADDRINUSE:
        found.findings.append(await _door(settings.listen, session, found))
    else:
        found.findings.append(_address("listen", settings.listen, door_why))
    return found


def _why_not(address: Address) -> int | None:
    """Why we could not listen there, as the number of an error; None if we could."""
    try:
        bind(*address).close()
    except OSError as error:
        return error.errno
    return None


def _address(setting: str, address: Address, why: int | None) -> Finding:
    text = address_text(*address)
    if why is None:
        return ok(setting, f"{text} is free")
    taken = ("another program listens there", "stop it, or choose another address")
    reason, then = taken if why == errno.EADDRINUSE else _REASONS.get(why, (errno.errorcode.get(why, str(why)), ""))
    return problem(setting, f"cannot listen on {text}: {reason}", then=then or "choose another address")


async def _running(address: Address, session: aiohttp.ClientSession) -> GatewayStatus | None:
    try:
        status, _ = await ask(session, url_of(*address), timeout_s=_TIMEOUT_S)
    except NotAGateway:
        return None
    return status


def _gateway(status: GatewayStatus, settings: Settings) -> list[Finding]:
    about = "running gateway"
    findings = [
        problem(about, f"could not reload: {text}", then="mend the file, then send SIGHUP")
        for text in status.reload_problems
    ]
    if status.draining:
        findings.append(note(about, "is draining and will be gone soon", then="nothing, if that is meant"))
    if status.config_hash == settings.hash:
        findings.append(ok(about, f"headgate {status.version} runs with this configuration, {settings.hash}"))
    else:
        message = f"has configuration {status.config_hash}, the file is {settings.hash}"
        then = "send it SIGHUP to take up the file; if it was started with other environment variables, that is why"
        findings.append(note(about, message, then=then))
    return [*findings, *map(_sequence_limit, filter(_is_limited, status.endpoints))]


def _is_limited(endpoint: EndpointState) -> bool:
    return endpoint.sequences_max is not None and endpoint.sequences_max < endpoint.in_flight_max


def _sequence_limit(endpoint: EndpointState) -> Finding:
    learned = endpoint.sequences_max
    message = f"requests waited in its engine while {learned} ran, so it gets only some more than that at once"
    then = "compare in_flight_max with the engine's own limit (vLLM: --max-num-seqs)"
    return note(endpoint.id, message, then=then)


async def _door(address: Address, session: aiohttp.ClientSession, found: Listeners) -> Finding:
    """A gateway runs beside: is it the one that listens here?"""
    try:
        page = await get_page(session, url_of(*address), "/v1/models", headers={}, timeout_s=_TIMEOUT_S)
    except Unheard:
        return _address("listen", address, errno.EADDRINUSE)
    if not page.headers.get("x-request-id", "").startswith("req_"):
        return _address("listen", address, errno.EADDRINUSE)
    found.heard = heard_at("running gateway", page.headers)
    return ok("listen", f"{address_text(*address)} is served by a gateway")
