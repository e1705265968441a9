"""Copies of requests in a cell."""

from dataclasses import replace

from headgate.model.outcome import Outcome
from testing.builders import at
from tests.hosts.cell.builders import a_cell, a_ticket


def test_copy_reaches_the_scheduler_as_a_copy() -> None:
    cell = a_cell("g1", "g2")
    ticket = replace(a_ticket("r-mirror", tenant="_mirror"), requested_class="interactive", mirror_route="stable")
    cell.open("g1", ticket, at(1))
    cell.pass_time(1, 1.5)

    [ended] = cell.ended("g1")
    assert (ended.outcome, ended.attempts) == (Outcome.NO_ENDPOINTS, 0)
    assert ended.reason == 'route "stable" of model "m" has no mirror any more'


def test_copy_is_not_counted_as_queued() -> None:
    cell = a_cell("g1", "g2")
    cell.open("g1", replace(a_ticket("r-mirror", tenant="_mirror"), mirror_route="stable"), at(1))

    assert cell.members["g1"].summary().queued == {"interactive": 0, "batch": 0}
