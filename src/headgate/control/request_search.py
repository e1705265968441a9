"""Finds and explains requests handled by this gateway or by other members of its cell.

A request is known to the gateway that handled it, and to gateways that share its records directory. If a request is not
known here, all other members are queried in parallel. A search always queries them. The queries are read-only requests
to the addresses that the members registered in the cell, and a queried member does not query others in turn. Each
response contains the member's name, and responses with the wrong name are ignored. The result lists members that did
not respond in time.

Daemon threads read files and assemble responses, so that they do not keep the process from exiting.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from headgate.control.leader_client import member_url
from headgate.edge.admin.request_query import Ago, RequestQuery, Timestamp
from headgate.engines.page import Page, PageUnavailable, get_page
from headgate.model.units import Instant
from headgate.telemetry.records.archive import RecordArchive
from headgate.telemetry.records.search import RecordFilter

if TYPE_CHECKING:
    import aiohttp

    from headgate.hosts.cell.redis.registry import CellMember

ASK_S_MAX: Final = 3.0
"""Timeout for looking up one ID on another member, in seconds. The member itself searches for up to two seconds."""
SEARCH_S_MAX: Final = 5.0
"""Timeout for a search on another member, in seconds. Searching millions of records is slow."""
_ANSWER_BYTES_MAX: Final = 1024 * 1024
_MEMBER_QUERIES_MAX: Final = 8
_LOCAL_READS_MAX: Final = 2
"""Maximum number of concurrent queries in this process that read files. Other queries wait."""
_US: Final = 1_000

_Answer = dict[str, object]
_T = TypeVar("_T")


class RequestSearch:
    def __init__(
        self,
        archive: RecordArchive,
        session: "aiohttp.ClientSession",
        now: Callable[[], Instant],
        *,
        member: str = "",
        members: Callable[[], "Sequence[CellMember]"] = lambda: (),
        get: Callable[..., Awaitable[Page]] = get_page,
    ) -> None:
        """`member` is this process's name in its cell. Without a cell, `members` is empty."""
        self._archive = archive
        self._session = session
        self._now = now
        self._own = member
        self._members = members
        self._get = get
        self._turn = asyncio.Semaphore(_LOCAL_READS_MAX)
        self._asking = asyncio.Semaphore(_MEMBER_QUERIES_MAX)

    async def explain(self, request_id: str, local: bool) -> tuple[int, Mapping[str, object]]:  # noqa: FBT001  From the query.
        tell = self._archive.explain(request_id, self._now())
        # Requests in memory do not wait for queries that read files.
        known, told = await (_in_thread(tell) if self._archive.is_in_memory(request_id) else self._run_limited(tell))
        if local:
            return (200 if known else 404), {**told, **self._sender()}
        if known:
            return 200, told
        heard, unheard = await self._ask_members(f"/explain/{request_id}?local=1", ASK_S_MAX)
        for name, answer in heard.items():
            if "summary" in answer:
                return 200, {**answer, "reported_by": name}
        return 404, _with_unreachable(told, heard, unheard)

    async def search(self, query: RequestQuery) -> Mapping[str, object]:
        find = self._archive.search(self._criteria(query))
        found = await self._run_limited(find)
        if query.local:
            return {**found, **self._sender()}
        question = "/requests?" + "&".join(part for part in (query.text, "local=1") if part)
        heard, unheard = await self._ask_members(question, SEARCH_S_MAX)
        return await _in_thread(partial(_merge, [found, *heard.values()], query.limit, unheard))

    def _sender(self) -> _Answer:
        return {"member": self._own} if self._own else {}

    async def _run_limited(self, work: Callable[[], _T]) -> _T:
        """Runs the work in a thread, holding a slot until the work is done even if the caller is cancelled first."""
        await self._turn.acquire()
        return await _in_thread(work, self._turn.release)

    def _criteria(self, query: RequestQuery) -> RecordFilter:
        now = self._now()
        return RecordFilter(
            since=_instant(query.since, now),
            until=_instant(query.until, now),
            tenant=query.tenant,
            service_class=query.service_class,
            outcome=None if query.outcome is None else query.outcome.value,
            total_us_min=None if query.duration_ns_min is None else query.duration_ns_min // _US,
            limit=query.limit,
        )

    async def _ask_members(self, path: str, seconds_max: float) -> tuple[dict[str, _Answer], list[str]]:
        """Returns the other members' responses, and the names of those that did not respond."""
        others = [each for each in self._members() if each.name != self._own]
        answers = await asyncio.gather(*(self._ask_member(each, path, seconds_max) for each in others))
        heard = {each.name: answer for each, answer in zip(others, answers, strict=True) if answer is not None}
        return heard, [each.name for each in others if each.name not in heard]

    async def _ask_member(self, member: "CellMember", path: str, seconds_max: float) -> _Answer | None:
        """Returns the member's response; None if there is no response or another member responds at that address."""
        if not member.admin:
            return None
        try:
            async with self._asking:
                page = await self._get(
                    self._session,
                    member_url(member.admin),
                    path,
                    headers={},
                    timeout_s=seconds_max,
                    page_bytes_max=_ANSWER_BYTES_MAX,
                )
                answer = await _in_thread(partial(msgspec.json.decode, page.body, type=_Answer))
        except (PageUnavailable, msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError):
            return None
        return answer if answer.pop("member", None) == member.name else None


async def _in_thread(work: Callable[[], _T], on_done: Callable[[], None] = lambda: None) -> _T:
    """Runs `work` in a daemon thread, then `on_done` in the event loop, and returns the result."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def over(result: _T | None, error: Exception | None) -> None:
        on_done()
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # pyright: ignore[reportArgumentType]  (there is a result if there is no error)

    def run() -> None:
        result: _T | None = None
        error: Exception | None = None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001 (raised again where the result is awaited)
            error = raised
        try:
            loop.call_soon_threadsafe(over, result, error)
        except RuntimeError:
            # The event loop has closed, so the caller is gone.
            return

    threading.Thread(target=run, name="headgate-asked", daemon=True).start()
    return await done


def _instant(moment: Ago | Timestamp, now: Instant) -> int:
    match moment:
        case Ago():
            return now - moment.length_ns
        case Timestamp():
            return moment.instant


def _with_unreachable(told: Mapping[str, object], heard: Mapping[str, _Answer], unheard: list[str]) -> _Answer:
    answer = dict(told)
    if heard or unheard:
        said = f"; cell members {', '.join(heard)} do not have it either" if len(heard) > 1 else ""
        if len(heard) == 1:
            said = f"; cell member {next(iter(heard))} does not have it either"
        said += f"; no response from {', '.join(unheard)}" if unheard else ""
        answer |= {"error": f"{told['error']}{said}", "unreachable_members": unheard}
    return answer


def _merge(answers: Sequence[Mapping[str, object]], limit: int, unheard: list[str]) -> _Answer:
    """Merges the responses, newest first and without duplicates."""
    rows: dict[str, tuple[str, Mapping[str, object]]] = {}
    complete = True
    for answer in answers:
        try:
            page = msgspec.convert(answer, _SearchPage)
        except msgspec.ValidationError:
            complete = False
            continue
        complete = complete and page.complete
        for row in page.requests:
            rows.setdefault(str(row.get("request_id")), (str(row.get("arrived_at")), row))
    newest = sorted(rows.values(), key=lambda each: each[0], reverse=True)
    return {"requests": [row for _, row in newest[:limit]], "complete": complete, "unreachable_members": unheard}


class _SearchPage(msgspec.Struct, frozen=True):
    requests: list[dict[str, object]]
    complete: bool
