"""What does a gateway say of requests that others of its cell may know, and whom does it wait for?"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.control.request_search import Requests
from headgate.edge.admin.query import read_query
from headgate.engines.page import Unheard
from headgate.hosts.cell.redis.registry import CellMember
from headgate.model.units import Instant

SELF, OTHER = CellMember("gw-1", "10.0.0.1:9", leads=True), CellMember("gw-2", "10.0.0.2:9", leads=False)


class Nothing:
    """An archive that knows nothing, and may take its time."""

    def __init__(self, work: Callable[[], None] = lambda: None, *, in_memory: bool = False) -> None:
        self._work = work
        self._in_memory = in_memory

    def remembers(self, name: str) -> bool:
        return self._in_memory

    def explain(self, name: str, now: Instant) -> Callable[[], tuple[bool, Mapping[str, object]]]:
        def tell() -> tuple[bool, Mapping[str, object]]:
            self._work()
            return False, {"error": "nothing"}

        return tell

    def search(self, wanted: object) -> Callable[[], Mapping[str, object]]:
        return lambda: {"requests": [], "whole": True}


def requests(archive: Nothing, *members: CellMember, get: Any = None) -> Requests:
    return Requests(archive, None, lambda: Instant(0), own="gw-1", members=lambda: members, get=get)  # type: ignore[arg-type]


def answering(pages: Mapping[str, object], asked: list[str] | None = None) -> Any:
    async def get_page(session: object, url: str, path: str, **_: Any) -> SimpleNamespace:
        if asked is not None:
            asked.append(url)
        if url not in pages:
            raise Unheard("nobody")
        return SimpleNamespace(body=json.dumps(pages[url]).encode())

    return get_page


async def test_who_answers_with_another_name_is_not_taken_for_the_one_that_was_asked() -> None:
    pages = {"http://10.0.0.2:9": {"requests": [], "whole": True, "error": "no", "member": "gw-1"}}
    asked = requests(Nothing(), SELF, OTHER, get=answering(pages))

    status, told = await asked.explain("req_x", False)
    found = await asked.search(read_query(b""))

    assert (status, told["not_heard"], found["not_heard"]) == (404, ["gw-2"], ["gw-2"])


async def test_who_answers_by_its_own_name_is_heard_and_the_name_is_not_passed_on() -> None:
    get = answering({"http://10.0.0.2:9": {"summary": "it went well", "member": "gw-2"}})

    assert await requests(Nothing(), SELF, OTHER, get=get).explain("req_x", False) == (
        200,
        {"summary": "it went well", "told_by": "gw-2"},
    )
    assert (await requests(Nothing()).explain("req_x", True))[1]["member"] == "gw-1"


async def test_one_without_an_address_is_named_and_not_asked() -> None:
    asked: list[str] = []

    _, told = await requests(Nothing(), SELF, OTHER._replace(admin=""), get=answering({}, asked)).explain(
        "req_x", False
    )

    assert (told["not_heard"], asked) == (["gw-2"], [])


async def test_what_is_in_memory_does_not_wait_for_those_who_read_files() -> None:
    going_on, others = threading.Event(), {*threading.enumerate()}
    slow = requests(Nothing(going_on.wait))
    reading = [asyncio.create_task(slow.explain("req_x", True)) for _ in range(3)]
    await asyncio.sleep(0.02)
    slow._archive = Nothing(in_memory=True)  # type: ignore[assignment]
    async with asyncio.timeout(30):
        assert (await slow.explain("req_y", True))[0] == 404
    assert not any(task.done() for task in reading)
    # A turn is given back only when the thread is done, also where nobody waits any more.
    reading[0].cancel()
    await asyncio.sleep(0.02)
    assert sum(each.name == "headgate-asked" for each in {*threading.enumerate()} - others) == 2
    going_on.set()
    await asyncio.gather(*reading, return_exceptions=True)


def test_a_look_at_files_does_not_hold_up_the_exit() -> None:
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


async def test_what_a_look_raises_is_raised_where_it_was_asked_for() -> None:
    def mistaken() -> None:
        raise LookupError("no")

    with pytest.raises(LookupError):
        await requests(Nothing(mistaken)).explain("req_x", True)
