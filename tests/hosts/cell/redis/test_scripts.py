"""Are answers of the store's scripts read correctly, also invalid ones?"""

import pytest

from headgate.hosts.cell.protocol.messages import Snapshots
from headgate.hosts.cell.redis.scripts import kept


def test_the_store_says_which_snapshot_it_has() -> None:
    assert kept([b"7", b"3"]) == Snapshots(7, 3)


@pytest.mark.parametrize("answer", [1, None, [], [b"7"], [b"x", b"3"], [None, None], [b"9007199254740993", b"1"]])
def test_an_answer_without_numbers_is_not_the_store_of_a_cell(answer: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        kept(answer)
