"""LoRA adapters in a cell: one process observes them, and all processes keep what it has reported."""

from dataclasses import replace

import pytest

from headgate.core.events import EndpointJoined, PolicyChanged
from headgate.hosts.cell.protocol.views import MemberMode
from headgate.model.endpoint import Endpoint
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, Policy
from headgate.model.units import EndpointId, ModelName, PoolName
from testing.builders import a_policy, an_endpoint, at
from tests.hosts.cell.builders import Cell, a_cell, a_ticket

OBSERVED = replace(an_endpoint(places=4), adapters=("sql",), max_lora=2)
OF_OWN_FLEET = replace(an_endpoint(places=4), zone="z")
"""A change that each process sees in its own fleet."""


def adapter_policy() -> Policy:
    policy = a_policy()
    models = tuple(Model(ModelName(name), (PoolName("p"),), adapter=name) for name in ("sql", "chat"))
    return replace(policy, models=policy.models + models)


def a_cell_with_adapters() -> Cell:
    """The scheduler has observed the adapters. Then the fleet of each process has reported a change."""
    cell = a_cell("g1", "g2")
    for each in (cell.leader, *cell.members.values()):
        each.handle(PolicyChanged(adapter_policy(), "second"), at(1))
    cell.leader.handle(EndpointJoined(OBSERVED), at(1))
    cell.pass_time(1, 1.5)
    for each in (cell.leader, *cell.members.values()):
        each.handle(EndpointJoined(OF_OWN_FLEET), at(1.5))
    cell.pass_time(1.5, 2)
    return cell


def known(cell: Cell, name: str) -> Endpoint:
    return cell.members[name].endpoints.by_id[EndpointId("e1")]


@pytest.mark.parametrize("member", ["g1", "g2"])
def test_change_in_the_own_fleet_keeps_the_adapters_that_the_scheduler_reported(member: str) -> None:
    cell = a_cell_with_adapters()

    assert known(cell, member) == replace(OF_OWN_FLEET, adapters=("sql",), max_lora=2)


def test_change_in_the_fleet_of_the_scheduler_keeps_the_adapters_that_it_observed() -> None:
    cell = a_cell_with_adapters()
    cell.open("g1", a_ticket("r1", model="chat"), at(2))
    cell.open("g1", a_ticket("r2", model="sql"), at(2))
    cell.pass_time(2, 2.5)

    assert [(each.request_id, each.outcome) for each in cell.ended("g1")] == [("r1", Outcome.NO_ENDPOINTS)]
    assert [each.request_id for each in cell.begun("g1")] == ["r2"]


def test_island_keeps_the_adapters_after_a_change_in_its_own_fleet() -> None:
    cell = a_cell_with_adapters()
    cell.heard["g1"] = False
    cell.pass_time(2, 4)
    assert cell.members["g1"].mode is MemberMode.ISLAND
    cell.members["g1"].handle(EndpointJoined(an_endpoint(places=4)), at(4))
    cell.open("g1", a_ticket("r1", model="chat"), at(4))
    cell.open("g1", a_ticket("r2", model="sql"), at(4))

    assert [(each.request_id, each.outcome) for each in cell.ended("g1")] == [("r1", Outcome.NO_ENDPOINTS)]
    assert [each.request_id for each in cell.begun("g1")] == ["r2"]
