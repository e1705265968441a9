"""Real engines shared by several test files, since starting one takes up to a minute."""

from collections.abc import Iterator

import pytest

from testing.real_engines import RealEngine, vllm


@pytest.fixture(scope="session")
def shared_vllm() -> Iterator[RealEngine]:
    """A test may suspend and resume it, but not kill it."""
    with vllm(max_num_seqs=4) as engine:
        yield engine
