"""Placeholders of a fleet's command, and the ports that its processes get."""

import pytest

from headgate.fleets.processes.terms import NoPort, Ports, filled
from testing.ports import free_ports


def test_braces_that_are_no_placeholder_stay() -> None:
    values = {"port": "1", "model": "m", "pool": "p", "slot": "0"}

    assert (
        filled('--port={port} --json {"a": {"b": 1}} {model}-{slot}', values) == '--port=1 --json {"a": {"b": 1}} m-0'
    )


def test_ports_go_round_and_pass_over_those_that_are_taken() -> None:
    first, second, third, last = free_ports(4)
    # `Ports` starts at `first` plus the remainder of `start`.
    ports = Ports(first, last, start=2)

    assert [ports.take({last}) for _ in range(4)] == [third, first, second, third]
    with pytest.raises(NoPort, match=r"widen fleet\.ports"):
        ports.take({first, second, third, last})
