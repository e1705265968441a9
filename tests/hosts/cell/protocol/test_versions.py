"""Two adjacent protocol versions read each other's entries.

`recorded/version_3.json` contains one entry with each kind of message, as the pinned earlier commit wrote it
(testing/cell_samples.py).
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.hosts.cell.member.held_requests import HeldRequests
from headgate.hosts.cell.member.scheduler_connection import SchedulerConnection
from headgate.hosts.cell.protocol import codec
from headgate.hosts.cell.protocol.compatibility import APIS_SINCE, KINDS_SINCE, is_readable, with_known_api
from headgate.hosts.cell.protocol.messages import VERSION, CellVersion, Epoch, NewRequest, ReportDone, Share
from headgate.hosts.cell.protocol.views import MemberMode
from headgate.hosts.cell.timing import DEFAULT_BOUNDS, DEFAULT_TIMING
from headgate.model.ticket import APIS_WITHOUT_OUTPUT, Api
from testing.builders import at, duration
from testing.cell_samples import (
    ENUMERATIONS,
    FROM_MEMBER,
    FROM_SCHEDULER,
    SNAPSHOT,
    as_json,
    entries_of,
    entries_to,
    rewritten,
)
from testing.earlier_version import earlier_source
from testing.processes import MissingProgram
from tests.hosts.cell.builders import Cell, a_leader, a_member, a_ticket
from tests.hosts.cell.store_places import absent
from tests.house.small_tree import PROJECT

EARLIER = VERSION - 1
TEXT = (Path(__file__).parent / "recorded" / f"version_{EARLIER}.json").read_text()
RECORDED: dict[str, Any] = json.loads(TEXT)
BY_KIND = {type(each).__name__: each for each in (*FROM_MEMBER, *FROM_SCHEDULER)} | {"Snapshot": SNAPSHOT}


def missing(earlier: Any, now: Any) -> list[str]:
    """Fields of an entry of the earlier version that this version leaves out or writes with another value."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        lost = [f"{key} is missing" for key in earlier if key not in now]
        return lost + [f"{key}: {each}" for key in earlier if key in now for each in missing(earlier[key], now[key])]
    if isinstance(earlier, list) and isinstance(now, list) and len(earlier) == len(now):
        return [each for pair in zip(earlier, now, strict=True) for each in missing(*pair)]
    return [] if earlier == now else [f"{earlier!r} became {now!r}"]


@pytest.mark.parametrize("kind", RECORDED["entries"])
def test_entry_recorded_from_the_earlier_version_is_read(kind: str) -> None:
    written = entries_of(TEXT)[kind]
    if kind == "Snapshot":
        assert codec.decode_snapshot(written) == replace(SNAPSHOT, version=EARLIER)
        return
    decode = codec.decode_member_entry if kind in codec._FROM_MEMBER else codec.decode_scheduler_entry
    entry = decode(written)

    assert entry.head.version == EARLIER
    assert [each for _, each in entry.messages] == [BY_KIND[kind]]


@pytest.mark.parametrize("kind", RECORDED["entries"])
def test_entry_contains_everything_that_the_earlier_version_reads(kind: str) -> None:
    earlier, now = (msgspec.msgpack.decode(each[kind]) for each in (entries_of(TEXT), entries_to(EARLIER)))

    assert missing(earlier, now) == [f"version: {EARLIER} became {VERSION}"]


@pytest.mark.parametrize("message", FROM_MEMBER, ids=lambda each: type(each).__name__)
def test_tickets_for_the_earlier_version_name_an_api_that_it_knows(message: Any) -> None:
    report = getattr(message, "report", message)
    if not hasattr(report, "ticket"):
        assert with_known_api(message, EARLIER) is message
        return
    for api in Api:
        told = replace(report, ticket=replace(report.ticket, api=api))
        sent = with_known_api(told if report is message else replace(message, report=told), EARLIER)
        ticket = getattr(sent, "report", sent).ticket

        assert ticket.api.value in RECORDED["values"]["Api"]
        assert (ticket.api in APIS_WITHOUT_OUTPUT) is (api in APIS_WITHOUT_OUTPUT)
        assert replace(ticket, api=api) == replace(report.ticket, api=api)


@pytest.mark.parametrize(("version", "api"), [(EARLIER, Api.CHAT), (VERSION, Api.MESSAGES)])
def test_member_replaces_an_api_only_for_a_scheduler_of_the_earlier_version(version: int, api: Api) -> None:
    connection = SchedulerConnection(HeldRequests(unsettled_max=1), at(0), timing=DEFAULT_TIMING, bounds=DEFAULT_BOUNDS)
    connection.follow(Epoch(1, "one"), version)
    connection.send(NewRequest(replace(a_ticket("r1"), api=Api.MESSAGES), duration(0)), at(0))

    _, ((_, sent),) = connection.outbound.pop_unsent(1, at(0))
    assert isinstance(sent, NewRequest)
    assert sent.ticket.api is api


def test_new_kinds_of_message_are_not_sent_to_the_earlier_version() -> None:
    new = {*codec._FROM_MEMBER, *codec._FROM_SCHEDULER} - set(RECORDED["entries"])

    assert {kind.__name__ for kind, since in KINDS_SINCE.items() if since > EARLIER} == new
    assert set(entries_to(EARLIER)) == set(RECORDED["entries"])
    assert set(entries_to(VERSION)) == set(RECORDED["entries"]) | new


@pytest.mark.parametrize("values", ENUMERATIONS)
def test_earlier_version_knows_all_values_of_an_enumeration(values: type) -> None:
    new = {str(each.value) for each in values} - set(RECORDED["values"][values.__name__])
    replaced: set[str] = (
        {api.value for api, (since, _) in APIS_SINCE.items() if since > EARLIER} if values is Api else set()
    )

    assert new == replaced, "send another value to earlier versions (protocol/compatibility.py)"


@pytest.mark.process
def test_earlier_version_reads_every_entry_that_is_sent_to_it(tmp_path: Path) -> None:
    try:
        source = earlier_source(tmp_path)
    except MissingProgram as problem:
        absent(problem)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(PROJECT)))}
    command = [sys.executable, "-m", "testing.cell_samples", "read"]
    sent = as_json(entries_to(EARLIER))
    done = subprocess.run(command, env=environment, input=sent, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["version"] == EARLIER
    for kind, written in entries_of(done.stdout).items():
        assert rewritten(kind, written) == entries_to(EARLIER)[kind]


# Cells of both versions


def test_scheduler_sends_an_earlier_member_nothing_that_it_cannot_read() -> None:
    cell = Cell(
        a_leader(),
        a_member("g1", share=Share(0, 2)),
        a_member("g2", share=Share(1, 2), version=EARLIER),
        versions={"g2": EARLIER},
    )
    cell.pass_time(0, 0.6)
    for name in cell.members:
        cell.open(name, a_ticket(name), at(0.7))
    # Decoding fails if the scheduler sends the member of the earlier version a new kind of message.
    cell.pass_time(0.7, 2)

    assert [len(cell.begun(name)) for name in ("g1", "g2")] == [1, 1]
    assert {each.version for each in cell.leader.members().values()} == {EARLIER, VERSION}
    assert cell.members["g1"].lowest_version == EARLIER


def test_member_learns_when_all_processes_run_the_new_version() -> None:
    cell = Cell(
        a_leader(),
        a_member("g1", share=Share(0, 2)),
        a_member("g2", share=Share(1, 2), version=EARLIER),
        versions={"g2": EARLIER},
    )
    cell.pass_time(0, 1)
    before = cell.members["g1"].lowest_version
    cell.members["g2"].leave(at(1.1))
    cell.pass_time(1.1, 2)

    assert (before, cell.members["g1"].lowest_version) == (EARLIER, VERSION)


def test_member_follows_a_scheduler_of_the_earlier_version() -> None:
    cell = Cell(a_leader(version=EARLIER), a_member("g1", share=Share(0, 1)), versions={"": EARLIER})
    cell.pass_time(0, 0.6)
    cell.open("g1", a_ticket("r1"), at(0.7))
    cell.pass_time(0.7, 2)

    assert (cell.members["g1"].mode, cell.members["g1"].lowest_version) == (MemberMode.FOLLOWING, EARLIER)
    assert len(cell.begun("g1")) == 1


def test_member_does_not_queue_a_message_that_the_scheduler_cannot_read() -> None:
    connection = SchedulerConnection(HeldRequests(unsettled_max=1), at(0), timing=DEFAULT_TIMING, bounds=DEFAULT_BOUNDS)
    connection.follow(Epoch(1, "one"), EARLIER)
    new: Any = CellVersion(VERSION)

    assert not is_readable(new, EARLIER)
    assert (connection.send(new, at(0)), connection.send(ReportDone(), at(0))) == (0, 1)
