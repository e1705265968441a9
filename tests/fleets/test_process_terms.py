"""Placeholders of a fleet's command, and the ports that its processes get."""

import pytest

from headgate.fleets.processes.terms import NoPort, Ports, filled


def test_braces_that_are_no_placeholder_stay() -> None:
    values = {"port": "1", "model": "m", "pool": "p", "slot": "0"}

    assert (
        filled('--port={port} --json {"a": {"b": 1}} {model}-{slot}', values) == '--port=1 --json {"a": {"b": 1}} m-0'
    )


def test_ports_go_round_and_pass_over_those_that_are_taken() -> None:
    ports = Ports(21_500, 21_503, start=2)

    assert [ports.take({21_503}) for _ in range(4)] == [21_502, 21_500, 21_501, 21_502]
    with pytest.raises(NoPort, match=r"widen fleet\.ports"):
        ports.take(range(21_500, 21_504))
