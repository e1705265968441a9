"""Is what is asked of an operator's page read as it was meant, or refused?"""

import pytest

from headgate.edge.admin.query import At, BadQuery, Before, RequestQuery, read_local, read_query
from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, Duration


def test_nothing_asked_is_the_last_hour() -> None:
    assert read_query(b"") == RequestQuery()
    assert RequestQuery().since == Before(Duration(3_600 * SECOND))


def test_everything_asked_is_read() -> None:
    text = b"tenant=a%20b&class=chat&outcome=shed&since=10m&until=2026-01-01T00:00:00Z&slower_ms=250&limit=5&local=1"

    assert read_query(text) == RequestQuery(
        tenant="a b",
        service_class="chat",
        outcome=Outcome.SHED,
        since=Before(Duration(600 * SECOND)),
        until=At(1_767_225_600 * SECOND),
        slower_ns=Duration(250 * MILLISECOND),
        limit=5,
        local=True,
        text=text.decode(),
    )


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (b"tenants=a", "one of the parameters is not known here; there is tenant, class, outcome,"),
        (b"tenant", "the query cannot be read"),
        (b"tenant=a&", "the query cannot be read"),
        (b"tenant=a&tenant=b", "tenant is there twice"),
        (b"tenant=", "tenant must be of 1 to 256 letters"),
        (b"tenant=" + b"a" * 257, "tenant must be of 1 to 256 letters"),
        (b"tenant=%00", "tenant must be of 1 to 256 letters"),
        (b"tenant=%1b[2J", "tenant must be of 1 to 256 letters"),
        (b"tenant=%ff", "the query cannot be read"),
        (b"tenant=\xff", "the query cannot be read"),
        (b"tenant=a&class=b&outcome=shed&since=1m&until=1m&slower_ms=1&limit=1&local=1&x=1", "cannot be read"),
        (b"outcome=good", "outcome must be one of completed, invalid,"),
        (b"since=10", "since must be a length of time such as 10m, or a moment"),
        (b"since=yesterday", "since must be"),
        (b"until=2026-01-01T00:00:00", "until must be"),
        (b"slower_ms=-1", "slower_ms must be a number"),
        (b"slower_ms=1e9", "slower_ms must be a number"),
        (b"slower_ms=%D9%A3", "slower_ms must be a number"),
        (b"limit=0", "limit must be from 1 to 200"),
        (b"limit=201", "limit must be from 1 to 200"),
        (b"local=0", "local can be 1 or left out"),
        (b"tenant=" + b"a" * 2_048, "the query is longer than 2048 bytes"),
    ],
)
def test_what_cannot_be_meant_is_refused_without_being_repeated(query: bytes, said: str) -> None:
    with pytest.raises(BadQuery) as refused:
        read_query(query)

    assert said in str(refused.value)
    assert str(refused.value).isprintable()


def test_one_request_is_asked_of_all_or_of_one_process() -> None:
    assert read_local(b"") is False
    assert read_local(b"local=1") is True
    with pytest.raises(BadQuery):
        read_local(b"tenant=a")
