"""What does a running gateway say is wrong?"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import DecodeError, Struct, field, json

from headgate.cli.output.status import NotAGateway
from headgate.engines.page import Unheard, get_page

if TYPE_CHECKING:
    import aiohttp

PATH = "/verdict"
HEALTHY = "healthy"
TIMEOUT_S = 5.0


class AffectedSaid(Struct, frozen=True):
    service_class: str | None = field(name="class", default=None)
    tenant: str | None = None
    how: str = ""


class VerdictSaid(Struct, frozen=True):
    pool: str | None
    cause: str
    incident: str
    since_s: int
    sentence: str
    evidence: tuple[str, ...] = ()
    affected: tuple[AffectedSaid, ...] = ()
    action: str = ""
    runbook: str = ""


class Scheduler(Struct, frozen=True):
    name: str
    admin: str
    """Where its own page is."""


class Said(Struct, frozen=True):
    verdicts: tuple[VerdictSaid, ...]
    decides: bool = True
    scheduler: Scheduler | None = None
    """Who decides in its cell."""

    @property
    def well(self) -> bool:
        return all(each.cause == HEALTHY for each in self.verdicts)


async def ask(session: "aiohttp.ClientSession", url: str, *, timeout_s: float = TIMEOUT_S) -> tuple[Said, bytes]:
    """What it says, and the page that it was read from. Raises `NotAGateway`."""
    try:
        page = await get_page(session, url, PATH, headers={}, timeout_s=timeout_s)
    except Unheard as unheard:
        raise NotAGateway(f"no gateway answers at {url}: {unheard}") from unheard
    try:
        return json.decode(page.body, type=Said), page.body
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotAGateway(f"what answers at {url} is not the admin listener of a gateway") from error


def lines(said: Said) -> Iterator[str]:
    if not said.verdicts:
        yield "the gateway has yet to look; ask again in a second"
    for each in said.verdicts:
        yield from _lines(each)
    if not said.decides:
        where = said.scheduler
        yield "of pools the scheduler of the cell knows" + ("; nobody knows it at the moment" if where is None else ":")
        if where is not None:
            yield f"  -> headgate doctor --live --gateway {where.admin}   ({where.name} is the scheduler)"


def summary(said: Said) -> Iterator[str]:
    """Every verdict that is not healthy, with its advice; one line if all are healthy."""
    if not said.verdicts:
        yield "verdict: not known yet"
    elif said.well and not said.decides and all(each.pool is None for each in said.verdicts):
        asked = "no scheduler is known" if said.scheduler is None else f"ask the scheduler at {said.scheduler.admin}"
        yield f"verdict: this gateway is {HEALTHY}; the state of the pools is unknown here, {asked}"
    elif said.well:
        yield f"verdict: {HEALTHY}"
    for each in said.verdicts:
        if each.cause != HEALTHY:
            yield f"verdict: {each.incident} for {each.since_s} s: {each.sentence}"
            yield f"  -> {each.action}"


def _lines(verdict: VerdictSaid) -> Iterator[str]:
    if verdict.cause == HEALTHY:
        yield f"{HEALTHY:<14}{verdict.sentence}"
        return
    yield f"{verdict.cause:<14}{verdict.sentence}"
    yield f"{'':<14}since {verdict.since_s} s ({verdict.incident})"
    for fact in verdict.evidence:
        yield f"{'':<14}- {fact}"
    for each in verdict.affected:
        named = (("class", each.service_class), ("tenant", each.tenant))
        who = ", ".join(f"{what} {name}" for what, name in named if name)
        yield f"{'':<14}affected: {who or 'all'}: {each.how}"
    yield f"{'':<14}-> {verdict.action}"
    yield f"{'':<14}-> read {verdict.runbook}"
