"""What do tests of the instruments stand on? A bench upstream of their own."""

import os
from collections.abc import Iterator

import pytest

from bench.targets import Target, upstream


@pytest.fixture(scope="package")
def behind() -> Iterator[Target]:
    with upstream(max(os.sched_getaffinity(0))) as target:
        yield target
