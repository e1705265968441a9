"""Check that the listen addresses are free or in use by a gateway with this configuration."""

import errno
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import aiohttp

from headgate.cli.checkup.clock import ClockReading, clock_reading
from headgate.cli.checkup.finding import CheckFinding, note, ok, problem
from headgate.cli.output.status import EndpointStatus, GatewayNotFound, StatusPage, base_url, fetch_status
from headgate.config.listener_tls import certificate_problems, certificate_warnings
from headgate.config.quantities import address_text
from headgate.config.settings import Address, Settings
from headgate.edge.listener import bind
from headgate.engines.page import PageUnavailable, get_page, open_session
from headgate.ports.tls import InvalidTlsFile, named_client_context

_TIMEOUT_S = 2.0
_REASONS = {
    errno.EADDRNOTAVAIL: ("this machine has no such address", "use an address of this machine, or 0.0.0.0 for all"),
    errno.EACCES: ("permission denied", "use a port above 1023"),
}


@dataclass(slots=True)
class ListenerCheck:
    findings: list[CheckFinding] = field(default_factory=list[CheckFinding])
    clock: ClockReading | None = None
    """Clock reading of the gateway running there."""


async def check_listeners(settings: Settings, session: aiohttp.ClientSession) -> ListenerCheck:
    found = ListenerCheck(findings=list(_certificates(settings)))
    admin_why, door_why = _bind_error(settings.admin_listen), _bind_error(settings.listen)
    running: StatusPage | None = None
    if admin_why == errno.EADDRINUSE:
        running = await _running(settings, session)
    if running is not None:
        found.findings += _gateway(running, settings)
    else:
        found.findings.append(_address("admin_listen", settings.admin_listen, admin_why))
    if running is not None and door_why == errno.EADDRINUSE:
        found.findings.append(await _api_listener(settings, session, found))
    else:
        found.findings.append(_address("listen", settings.listen, door_why))
    return found


def _bind_error(address: Address) -> int | None:
    """Error number from an attempt to listen on the address; None if it succeeded."""
    try:
        bind(*address).close()
    except OSError as error:
        return error.errno
    return None


def _address(setting: str, address: Address, why: int | None) -> CheckFinding:
    text = address_text(*address)
    if why is None:
        return ok(setting, f"{text} is free")
    taken = ("another process is using it", "stop it, or choose another address")
    reason, then = taken if why == errno.EADDRINUSE else _REASONS.get(why, (errno.errorcode.get(why, str(why)), ""))
    return problem(setting, f"cannot listen on {text}: {reason}", next_step=then or "choose another address")


def _certificates(settings: Settings) -> Iterator[CheckFinding]:
    now_s = time.time()
    problems = list(certificate_problems(settings, now_s))
    if problems:
        yield from (problem(each.setting, each.message, next_step="correct the files") for each in problems)
        return
    yield from (
        note(each.setting, each.message, next_step="renew it") for each in certificate_warnings(settings, now_s)
    )


async def _running(settings: Settings, session: aiohttp.ClientSession) -> StatusPage | None:
    options = settings.admin_client_tls
    url = base_url(*settings.admin_listen, https=options is not None)
    try:
        if options is None:
            status, _ = await fetch_status(session, url, timeout_s=_TIMEOUT_S)
        else:
            async with open_session(tls=named_client_context(options)) as secure:
                status, _ = await fetch_status(secure, url, timeout_s=_TIMEOUT_S)
    except (GatewayNotFound, InvalidTlsFile):
        return None
    return status


def _gateway(status: StatusPage, settings: Settings) -> list[CheckFinding]:
    about = "running gateway"
    findings = [
        problem(about, f"could not reload: {text}", next_step="fix the file, then send SIGHUP")
        for text in status.reload_problems
    ]
    if status.draining:
        findings.append(note(about, "is draining and will stop", next_step="no action needed if this is intended"))
    if status.config_hash == settings.hash:
        findings.append(ok(about, f"headgate {status.version} is running with this configuration, {settings.hash}"))
    else:
        message = f"has configuration {status.config_hash}; the file is {settings.hash}"
        then = "send it SIGHUP to load the file; it may also have been started with different environment variables"
        findings.append(note(about, message, next_step=then))
    return [*findings, *map(_sequence_limit, filter(_is_limited, status.endpoints))]


def _is_limited(endpoint: EndpointStatus) -> bool:
    return endpoint.sequences_max is not None and endpoint.sequences_max < endpoint.in_flight_max


def _sequence_limit(endpoint: EndpointStatus) -> CheckFinding:
    learned = endpoint.sequences_max
    message = f"requests queued in its engine while {learned} were running, so the gateway sends only a few more"
    then = "compare in_flight_max with the engine's own limit (vLLM: --max-num-seqs)"
    return note(endpoint.id, message, next_step=then)


async def _api_listener(settings: Settings, session: aiohttp.ClientSession, found: ListenerCheck) -> CheckFinding:
    """Whether the running gateway is the process listening on this address."""
    address, tls = settings.listen, settings.listen_tls
    if tls is not None and tls.client_ca is not None:
        return ok(
            "listen", f"{address_text(*address)} is in use; it requires a client certificate, so it is not queried"
        )
    url = base_url(*address, https=tls is not None)
    context = None if tls is None else _unverified()
    try:
        page = await get_page(session, url, "/v1/models", headers={}, timeout_s=_TIMEOUT_S, tls=context)
    except PageUnavailable:
        return _address("listen", address, errno.EADDRINUSE)
    if not page.headers.get("x-request-id", "").startswith("req_"):
        return _address("listen", address, errno.EADDRINUSE)
    found.clock = clock_reading("running gateway", page.headers)
    return ok("listen", f"{address_text(*address)} is served by a gateway")


def _unverified() -> ssl.SSLContext:
    """Context for asking which program listens on an address of this machine. No secret is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
