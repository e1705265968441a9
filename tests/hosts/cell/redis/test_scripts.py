"""Tests for parsing replies from the store's scripts."""

import pytest

from headgate.hosts.cell.protocol.messages import SnapshotId
from headgate.hosts.cell.redis.scripts import parse_snapshot_id


def test_reply_contains_the_id_of_the_stored_snapshot() -> None:
    assert parse_snapshot_id([b"7", b"3"]) == SnapshotId(7, 3)


@pytest.mark.parametrize("answer", [1, None, [], [b"7"], [b"x", b"3"], [None, None], [b"9007199254740993", b"1"]])
def test_invalid_reply_raises(answer: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_snapshot_id(answer)
