"""Test ports are reserved for one test run at a time."""

import subprocess
import sys

import pytest

from testing.ports import free_ports
from tests.house.small_tree import PROJECT

SEARCH_FROM = "import itertools, testing.ports as p; p._OFFSETS = itertools.count({}); print(p.free_ports(2)[0])"


@pytest.mark.process
def test_reserved_port_is_not_assigned_to_another_process() -> None:
    first, second = free_ports(2)
    found = subprocess.run(
        [sys.executable, "-c", SEARCH_FROM.format(first - 20_000)],
        cwd=PROJECT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert int(found) not in (first, second)
