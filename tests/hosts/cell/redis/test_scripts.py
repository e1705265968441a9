"""Are valid and invalid answers of the store's scripts read correctly?"""

import pytest

from headgate.hosts.cell.protocol.messages import Snapshots
from headgate.hosts.cell.redis.scripts import kept


def test_answer_names_the_snapshot_that_the_store_has() -> None:
    assert kept([b"7", b"3"]) == Snapshots(7, 3)


@pytest.mark.parametrize("answer", [1, None, [], [b"7"], [b"x", b"3"], [None, None], [b"9007199254740993", b"1"]])
def test_invalid_answer_raises(answer: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        kept(answer)
