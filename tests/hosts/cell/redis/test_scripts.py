"""Are answers of the store's scripts read, whatever is there?"""

import pytest

from headgate.hosts.cell.redis.scripts import held_epoch


@pytest.mark.parametrize(("answer", "epoch"), [([b"7"], 7), (0, None), (None, None), ([], None), ([b"x"], None)])
def test_epoch_of_the_snapshot_that_the_store_keeps(answer: object, epoch: int | None) -> None:
    assert held_epoch(answer) == epoch
