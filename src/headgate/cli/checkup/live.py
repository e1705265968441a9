"""Verdicts reported by a running gateway."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import DecodeError, Struct, field, json

from headgate.cli.output.status import GatewayNotFound, get_admin_page

if TYPE_CHECKING:
    import aiohttp

PATH = "/verdict"
HEALTHY = "healthy"
TIMEOUT_S = 5.0


class ReportedAffected(Struct, frozen=True):
    service_class: str | None = field(name="class", default=None)
    tenant: str | None = None
    effect: str = ""


class ReportedVerdict(Struct, frozen=True):
    pool: str | None
    cause: str
    incident: str
    since_s: int
    sentence: str
    evidence: tuple[str, ...] = ()
    affected: tuple[ReportedAffected, ...] = ()
    action: str = ""
    runbook: str = ""


class CellScheduler(Struct, frozen=True):
    name: str
    admin: str
    """Address of the gateway's admin listener."""


class VerdictPage(Struct, frozen=True):
    verdicts: tuple[ReportedVerdict, ...]
    decides: bool = True
    scheduler: CellScheduler | None = None
    """Scheduler of the gateway's cell."""

    @property
    def healthy(self) -> bool:
        return all(each.cause == HEALTHY for each in self.verdicts)


async def fetch_verdicts(
    session: "aiohttp.ClientSession", url: str, *, timeout_s: float = TIMEOUT_S
) -> tuple[VerdictPage, bytes]:
    """The verdicts, and the page that they were read from. Raises `GatewayNotFound`."""
    page = await get_admin_page(session, url, PATH, timeout_s=timeout_s)
    try:
        return json.decode(page.body, type=VerdictPage), page.body
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise GatewayNotFound(f"the server at {url} is not the admin listener of a gateway") from error


def lines(said: VerdictPage, url: str) -> Iterator[str]:
    """All verdicts from the gateway at `url`."""
    if not said.verdicts:
        yield "no verdict yet; try again in a second"
    for each in said.verdicts:
        yield from _lines(each, url)
    if not said.decides:
        where = said.scheduler
        yield "only the cell's scheduler issues verdicts on pools" + ("; none is known" if where is None else ":")
        if where is not None:
            yield f"  -> headgate doctor --live --url {where.admin}   (scheduler {where.name})"


def summary(said: VerdictPage, url: str | None = None) -> Iterator[str]:
    """Every unhealthy verdict with its advice, or one line if all verdicts are healthy. If the gateway's address is
    passed as `url`, each verdict has a link to its runbook.
    """
    if not said.verdicts:
        yield "verdict: none yet"
    elif said.healthy and not said.decides and all(each.pool is None for each in said.verdicts):
        asked = "no scheduler is known" if said.scheduler is None else f"see the scheduler at {said.scheduler.admin}"
        yield f"verdict: this gateway is {HEALTHY}; the state of the pools is unknown here, {asked}"
    elif said.healthy:
        yield f"verdict: {HEALTHY}"
    for each in said.verdicts:
        if each.cause != HEALTHY:
            yield f"verdict: {each.incident} for {each.since_s} s: {each.sentence}"
            yield f"  -> {each.action}"
            if url is not None:
                yield f"  -> see {_runbook_url(each, url)}"


def _lines(verdict: ReportedVerdict, url: str) -> Iterator[str]:
    if verdict.cause == HEALTHY:
        yield f"{HEALTHY:<14}{verdict.sentence}"
        return
    yield f"{verdict.cause:<14}{verdict.sentence}"
    yield f"{'':<14}for {verdict.since_s} s ({verdict.incident})"
    for fact in verdict.evidence:
        yield f"{'':<14}- {fact}"
    for each in verdict.affected:
        named = (("class", each.service_class), ("tenant", each.tenant))
        who = ", ".join(f"{what} {name}" for what, name in named if name)
        yield f"{'':<14}affected: {who or 'all'}: {each.effect}"
    yield f"{'':<14}-> {verdict.action}"
    yield f"{'':<14}-> see {_runbook_url(verdict, url)}"


def _runbook_url(verdict: ReportedVerdict, url: str) -> str:
    """Link to the runbook on the admin listener, which serves the documentation under the same path."""
    return f"{url}/{verdict.runbook.removesuffix('.md')}"
