"""Placeholders in a fleet's command, and the ports that its processes get."""

import pytest

from headgate.fleets.processes.spec import NoFreePort, PortAllocator, fill_placeholders
from testing.ports import free_ports


def test_braces_other_than_placeholders_are_kept() -> None:
    values = {"port": "1", "model": "m", "pool": "p", "slot": "0"}

    assert (
        fill_placeholders('--port={port} --json {"a": {"b": 1}} {model}-{slot}', values)
        == '--port=1 --json {"a": {"b": 1}} m-0'
    )


def test_ports_wrap_around_and_skip_those_in_use() -> None:
    first, second, third, last = free_ports(4)
    # `PortAllocator` starts at `first` plus the remainder of `start`.
    ports = PortAllocator(first, last, start=2)

    assert [ports.allocate({last}) for _ in range(4)] == [third, first, second, third]
    with pytest.raises(NoFreePort, match=r"widen fleet\.port_range"):
        ports.allocate({first, second, third, last})
