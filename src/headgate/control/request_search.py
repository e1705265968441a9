"""What is known of requests, by this gateway and by the others of its cell?

A request is known to the gateway that carried it, and to those that share its folder of records. One that is not known
here is asked of all others at once; a search always is. Others are asked at the addresses that they have told the cell,
for what only reads, and are told to ask nobody else. Each says in its answer who it is: at an address that leads to
somebody else the one that was meant is not heard. Who does not answer in time is named.

Files are read and answers put together in threads that nobody waits for when the process leaves.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from headgate.edge.admin.query import At, Before, RequestQuery
from headgate.engines.page import Page, Unheard, get_page
from headgate.model.units import Instant
from headgate.telemetry.records.archive import Archive
from headgate.telemetry.records.search import Wanted

if TYPE_CHECKING:
    import aiohttp

    from headgate.hosts.cell.redis.registry import CellMember

ASK_S_MAX: Final = 3.0
"""Of the others, for one id: they look for it for two seconds."""
SEARCH_S_MAX: Final = 5.0
"""Of the others: a search among millions takes a while."""
_ANSWER_BYTES_MAX: Final = 1024 * 1024
_ASKED_AT_ONCE_MAX: Final = 8
_AT_ONCE_MAX: Final = 2
"""Questions that read files, of this process; others wait for their turn."""
_US: Final = 1_000

_Answer = dict[str, object]
_T = TypeVar("_T")


class Requests:
    def __init__(
        self,
        archive: Archive,
        session: "aiohttp.ClientSession",
        now: Callable[[], Instant],
        *,
        own: str = "",
        members: Callable[[], "Sequence[CellMember]"] = lambda: (),
        get: Callable[..., Awaitable[Page]] = get_page,
    ) -> None:
        """`own` is what this process is called in its cell; without a cell there are no `members`."""
        self._archive = archive
        self._session = session
        self._now = now
        self._own = own
        self._members = members
        self._get = get
        self._turn = asyncio.Semaphore(_AT_ONCE_MAX)
        self._asking = asyncio.Semaphore(_ASKED_AT_ONCE_MAX)

    async def explain(self, request_id: str, local: bool) -> tuple[int, Mapping[str, object]]:  # noqa: FBT001  As it was asked.
        tell = self._archive.explain(request_id, self._now())
        # What is in memory does not wait for those who read files.
        known, told = await (_apart(tell) if self._archive.remembers(request_id) else self._in_turn(tell))
        if local:
            return (200 if known else 404), {**told, **self._signed()}
        if known:
            return 200, told
        heard, unheard = await self._ask(f"/explain/{request_id}?local=1", ASK_S_MAX)
        for name, answer in heard.items():
            if "summary" in answer:
                return 200, {**answer, "told_by": name}
        return 404, _with_unheard(told, heard, unheard)

    async def search(self, query: RequestQuery) -> Mapping[str, object]:
        find = self._archive.search(self._wanted(query))
        found = await self._in_turn(find)
        if query.local:
            return {**found, **self._signed()}
        question = "/requests?" + "&".join(part for part in (query.text, "local=1") if part)
        heard, unheard = await self._ask(question, SEARCH_S_MAX)
        return await _apart(partial(_merged, [found, *heard.values()], query.limit, unheard))

    def _signed(self) -> _Answer:
        return {"member": self._own} if self._own else {}

    async def _in_turn(self, work: Callable[[], _T]) -> _T:
        """A turn is over when the work is, also where nobody waits for it any more."""
        await self._turn.acquire()
        return await _apart(work, self._turn.release)

    def _wanted(self, query: RequestQuery) -> Wanted:
        now = self._now()
        return Wanted(
            since=_instant(query.since, now),
            until=_instant(query.until, now),
            tenant=query.tenant,
            service_class=query.service_class,
            outcome=None if query.outcome is None else query.outcome.value,
            slower_us=None if query.slower_ns is None else query.slower_ns // _US,
            limit=query.limit,
        )

    async def _ask(self, path: str, seconds_max: float) -> tuple[dict[str, _Answer], list[str]]:
        """What each of the others says, and who says nothing."""
        others = [each for each in self._members() if each.name != self._own]
        answers = await asyncio.gather(*(self._asked(each, path, seconds_max) for each in others))
        heard = {each.name: answer for each, answer in zip(others, answers, strict=True) if answer is not None}
        return heard, [each.name for each in others if each.name not in heard]

    async def _asked(self, member: "CellMember", path: str, seconds_max: float) -> _Answer | None:
        """None where it says nothing, or somebody else answers at its address."""
        if not member.admin:
            return None
        try:
            async with self._asking:
                page = await self._get(
                    self._session,
                    f"http://{member.admin}",
                    path,
                    headers={},
                    timeout_s=seconds_max,
                    page_bytes_max=_ANSWER_BYTES_MAX,
                )
                answer = await _apart(partial(msgspec.json.decode, page.body, type=_Answer))
        except (Unheard, msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError):
            return None
        return answer if answer.pop("member", None) == member.name else None


async def _apart(work: Callable[[], _T], then: Callable[[], None] = lambda: None) -> _T:
    """What this comes to, in a thread that a process which leaves does not wait for. `then` runs on the loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def over(result: _T | None, error: Exception | None) -> None:
        then()
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # pyright: ignore[reportArgumentType]  (without an error there is one)

    def run() -> None:
        result: _T | None = None
        error: Exception | None = None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001 (it is raised where it is waited for)
            error = raised
        try:
            loop.call_soon_threadsafe(over, result, error)
        except RuntimeError:
            # The loop has ended, and with it whoever asked.
            return

    threading.Thread(target=run, name="headgate-asked", daemon=True).start()
    return await done


def _instant(moment: Before | At, now: Instant) -> int:
    match moment:
        case Before():
            return now - moment.length_ns
        case At():
            return moment.instant


def _with_unheard(told: Mapping[str, object], heard: Mapping[str, _Answer], unheard: list[str]) -> _Answer:
    answer = dict(told)
    if heard or unheard:
        said = f"; {', '.join(heard)} of its cell know nothing of it either" if len(heard) > 1 else ""
        if len(heard) == 1:
            said = f"; {next(iter(heard))} of its cell knows nothing of it either"
        said += f"; not heard: {', '.join(unheard)}" if unheard else ""
        answer |= {"error": f"{told['error']}{said}", "not_heard": unheard}
    return answer


def _merged(answers: Sequence[Mapping[str, object]], limit: int, unheard: list[str]) -> _Answer:
    """All of them, the newest first, each request once."""
    rows: dict[str, tuple[str, Mapping[str, object]]] = {}
    whole = True
    for answer in answers:
        try:
            page = msgspec.convert(answer, _Listed)
        except msgspec.ValidationError:
            whole = False
            continue
        whole = whole and page.whole
        for row in page.requests:
            rows.setdefault(str(row.get("request_id")), (str(row.get("arrived_at")), row))
    newest = sorted(rows.values(), key=lambda each: each[0], reverse=True)
    return {"requests": [row for _, row in newest[:limit]], "whole": whole, "not_heard": unheard}


class _Listed(msgspec.Struct, frozen=True):
    requests: list[dict[str, object]]
    whole: bool
