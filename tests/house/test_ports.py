"""Does a test get ports that no other test run has?"""

import subprocess
import sys

import pytest

from testing.ports import free_ports
from tests.house.small_tree import PROJECT

SEARCH_FROM = "import itertools, testing.ports as p; p._OFFSETS = itertools.count({}); print(p.free_ports(2)[0])"


@pytest.mark.process
def test_a_port_that_was_given_is_given_to_no_other_process() -> None:
    first, second = free_ports(2)
    found = subprocess.run(
        [sys.executable, "-c", SEARCH_FROM.format(first - 20_000)],
        cwd=PROJECT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert int(found) not in (first, second)
