"""Request lookups and searches across the members of a cell."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.control.request_search import RequestSearch
from headgate.edge.admin.request_query import read_query
from headgate.engines.page import PageUnavailable
from headgate.hosts.cell.redis.registry import CellMember
from headgate.model.units import Instant

SELF, OTHER = CellMember("gw-1", "10.0.0.1:9", is_leader=True), CellMember("gw-2", "10.0.0.2:9", is_leader=False)


class Nothing:
    """An archive without records whose lookups can block."""

    def __init__(self, work: Callable[[], None] = lambda: None, *, in_memory: bool = False) -> None:
        self._work = work
        self._in_memory = in_memory

    def is_in_memory(self, name: str) -> bool:
        return self._in_memory

    def explain(self, name: str, now: Instant) -> Callable[[], tuple[bool, Mapping[str, object]]]:
        def tell() -> tuple[bool, Mapping[str, object]]:
            self._work()
            return False, {"error": "nothing"}

        return tell

    def search(self, wanted: object) -> Callable[[], Mapping[str, object]]:
        return lambda: {"requests": [], "complete": True}


def requests(archive: Nothing, *members: CellMember, get: Any = None) -> RequestSearch:
    return RequestSearch(archive, None, lambda: Instant(0), member="gw-1", members=lambda: members, get=get)  # type: ignore[arg-type]


def answering(pages: Mapping[str, object], asked: list[str] | None = None) -> Any:
    async def get_page(session: object, url: str, path: str, **_: Any) -> SimpleNamespace:
        if asked is not None:
            asked.append(url)
        if url not in pages:
            raise PageUnavailable("nobody")
        return SimpleNamespace(body=json.dumps(pages[url]).encode())

    return get_page


async def test_response_with_another_member_name_is_ignored() -> None:
    pages = {"http://10.0.0.2:9": {"requests": [], "complete": True, "error": "no", "member": "gw-1"}}
    asked = requests(Nothing(), SELF, OTHER, get=answering(pages))

    status, told = await asked.explain("req_x", False)
    found = await asked.search(read_query(b""))

    assert (status, told["unreachable_members"], found["unreachable_members"]) == (404, ["gw-2"], ["gw-2"])


async def test_member_with_tls_is_asked_over_https() -> None:
    asked: list[str] = []
    secure = OTHER._replace(admin="https://10.0.0.2:9")

    await requests(Nothing(), SELF, secure, get=answering({}, asked)).explain("req_x", False)

    assert asked == ["https://10.0.0.2:9"]


async def test_explanation_from_another_member_is_returned_without_its_member_field() -> None:
    get = answering({"http://10.0.0.2:9": {"summary": "it went well", "member": "gw-2"}})

    assert await requests(Nothing(), SELF, OTHER, get=get).explain("req_x", False) == (
        200,
        {"summary": "it went well", "reported_by": "gw-2"},
    )
    assert (await requests(Nothing()).explain("req_x", True))[1]["member"] == "gw-1"


async def test_member_without_an_address_is_listed_but_not_queried() -> None:
    asked: list[str] = []

    _, told = await requests(Nothing(), SELF, OTHER._replace(admin=""), get=answering({}, asked)).explain(
        "req_x", False
    )

    assert (told["unreachable_members"], asked) == (["gw-2"], [])


async def test_lookup_in_memory_does_not_wait_for_file_reads() -> None:
    going_on, others = threading.Event(), {*threading.enumerate()}
    slow = requests(Nothing(going_on.wait))
    reading = [asyncio.create_task(slow.explain("req_x", True)) for _ in range(3)]
    await asyncio.sleep(0.02)
    slow._archive = Nothing(in_memory=True)  # type: ignore[assignment]
    async with asyncio.timeout(30):
        assert (await slow.explain("req_y", True))[0] == 404
    assert not any(task.done() for task in reading)
    # A cancelled query keeps its slot until its thread has finished.
    reading[0].cancel()
    await asyncio.sleep(0.02)
    assert sum(each.name == "headgate-asked" for each in {*threading.enumerate()} - others) == 2
    going_on.set()
    await asyncio.gather(*reading, return_exceptions=True)


def test_file_read_does_not_delay_the_process_exit() -> None:
    going_on = threading.Event()

    async def ask_and_leave() -> None:
        task = asyncio.create_task(requests(Nothing(going_on.wait)).explain("req_x", True))
        await asyncio.sleep(0.02)
        task.cancel()

    began = time.monotonic()
    asyncio.run(ask_and_leave())
    took = time.monotonic() - began
    going_on.set()
    assert took < 30


async def test_lookup_error_is_raised_to_the_caller() -> None:
    def mistaken() -> None:
        raise LookupError("no")

    with pytest.raises(LookupError):
        await requests(Nothing(mistaken)).explain("req_x", True)
