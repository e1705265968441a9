"""Parts of a request that routes need in the ticket."""

import json
from dataclasses import replace

import pytest

from headgate.edge.route_inputs import with_route_inputs
from headgate.model.routes import STICKY_CHARS_MAX, RouteInputs, Sticky
from headgate.model.ticket import Api, Ticket
from headgate.wire.request_body import RequestBody
from testing.builders import arrived

ALL = RouteInputs(("x-beta", "x-team"), frozenset({Sticky.USER, Sticky.SESSION}))


def ticket_of(headers: dict[bytes, bytes] | None = None, inputs: RouteInputs = ALL, **fields: object) -> Ticket:
    body = RequestBody.parse(
        json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode(), Api.CHAT
    )
    return with_route_inputs(arrived("r").ticket, body, headers or {}, inputs)


def keys_of(headers: dict[bytes, bytes] | None = None, **fields: object) -> dict[str, str]:
    return dict(ticket_of(headers, **fields).sticky_keys)


def test_ticket_has_only_the_configured_headers() -> None:
    ticket = ticket_of({b"x-beta": b"1", b"x-team": b"x" * (STICKY_CHARS_MAX + 1), b"authorization": b"Bearer s"})

    assert ticket.route_headers == (("x-beta", "1"),)


def test_ticket_without_headers_and_keys_stays_as_it_is() -> None:
    assert ticket_of() == arrived("r").ticket


def test_sticky_keys_are_hashed() -> None:
    user = keys_of(user="alice@example.com")["user"]

    assert len(user) == 32
    assert "alice" not in user
    assert user == keys_of(user="alice@example.com")["user"] != keys_of(user="bob@example.com")["user"]


def test_session_header_is_preferred_over_the_cache_key() -> None:
    header, field = keys_of({b"x-session-id": b"s1"}), keys_of(prompt_cache_key="s1")

    assert header == field
    assert keys_of({b"x-session-id": b"s2"}, prompt_cache_key="s1") != field


@pytest.mark.parametrize("user", [None, "", 7, ["a"], "x" * (STICKY_CHARS_MAX + 1), "\\u0061" * 20_000])
def test_unusable_user_is_no_sticky_key(user: object) -> None:
    assert keys_of(user=user) == {}


def test_only_the_configured_kinds_are_read() -> None:
    inputs = replace(ALL, sticky=frozenset({Sticky.USER}))

    assert [name for name, _ in ticket_of({b"x-session-id": b"s"}, inputs, user="u").sticky_keys] == ["user"]
