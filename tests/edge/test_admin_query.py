"""Tests for query parameters on the admin pages."""

import pytest

from headgate.edge.admin.request_query import Ago, BadQuery, RequestQuery, Timestamp, read_local, read_query
from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, Duration


def test_empty_query_selects_the_last_hour() -> None:
    assert read_query(b"") == RequestQuery()
    assert RequestQuery().since == Ago(Duration(3_600 * SECOND))


def test_all_parameters_are_parsed() -> None:
    text = (
        b"tenant=a%20b&class=chat&outcome=shed&since=10m&until=2026-01-01T00:00:00Z&min_duration_ms=250&limit=5&local=1"
    )

    assert read_query(text) == RequestQuery(
        tenant="a b",
        service_class="chat",
        outcome=Outcome.SHED,
        since=Ago(Duration(600 * SECOND)),
        until=Timestamp(1_767_225_600 * SECOND),
        duration_ns_min=Duration(250 * MILLISECOND),
        limit=5,
        local=True,
        text=text.decode(),
    )


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (b"tenants=a", "unknown parameter; valid parameters: tenant, class, outcome,"),
        (b"tenant", "invalid query string"),
        (b"tenant=a&", "invalid query string"),
        (b"tenant=a&tenant=b", "tenant must not occur more than once"),
        (b"tenant=", "tenant must have 1 to 256 printable characters"),
        (b"tenant=" + b"a" * 257, "tenant must have 1 to 256 printable characters"),
        (b"tenant=%00", "tenant must have 1 to 256 printable characters"),
        (b"tenant=%1b[2J", "tenant must have 1 to 256 printable characters"),
        (b"tenant=%ff", "invalid query string"),
        (b"tenant=\xff", "invalid query string"),
        (
            b"tenant=a&class=b&outcome=shed&since=1m&until=1m&min_duration_ms=1&limit=1&local=1&x=1",
            "invalid query string",
        ),
        (b"outcome=good", "outcome must be one of completed, invalid_request,"),
        (b"since=10", "since must be a duration such as 10m or a timestamp"),
        (b"since=yesterday", "since must be"),
        (b"until=2026-01-01T00:00:00", "until must be"),
        (b"min_duration_ms=-1", "min_duration_ms must be a whole number"),
        (b"min_duration_ms=1e9", "min_duration_ms must be a whole number"),
        (b"min_duration_ms=%D9%A3", "min_duration_ms must be a whole number"),
        (b"limit=0", "limit must be from 1 to 200"),
        (b"limit=201", "limit must be from 1 to 200"),
        (b"local=0", "local must be 1 or absent"),
        (b"tenant=" + b"a" * 2_048, "the query string exceeds 2048 bytes"),
    ],
)
def test_invalid_query_is_rejected_without_quoting_it(query: bytes, said: str) -> None:
    with pytest.raises(BadQuery) as refused:
        read_query(query)

    assert said in str(refused.value)
    assert str(refused.value).isprintable()


def test_local_parameter_limits_the_lookup_to_one_process() -> None:
    assert read_local(b"") is False
    assert read_local(b"local=1") is True
    with pytest.raises(BadQuery):
        read_local(b"tenant=a")
