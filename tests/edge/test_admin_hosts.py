"""Tests for the Host and Origin headers that the admin listener accepts."""

import pytest

from headgate.edge.admin.allowed_hosts import AllowedHosts

HOSTS = AllowedHosts(["Headgate.Internal", "ops.example."])


@pytest.mark.parametrize(
    "host",
    [
        b"127.0.0.1:9090",
        b"127.0.0.1",
        b"[::1]:9090",
        b"10.2.3.4:9090",
        b"localhost:9090",
        b"LOCALHOST",
        b"gateway.localhost:9090",
        b"headgate.internal:9090",
        b"headgate.internal.:9090",
        b"ops.example",
    ],
)
def test_addresses_loopback_names_and_configured_names_are_allowed(host: bytes) -> None:
    assert HOSTS.rejection({b"host": host}) is None


@pytest.mark.parametrize(
    "host", [b"attacker.example:9090", b"localhost.attacker.example", b"", b":9090", b"127.0.0.1.nip.example", b"[x]"]
)
def test_rejection_of_another_host_mentions_the_setting_that_allows_it(host: bytes) -> None:
    refusal = HOSTS.rejection({b"host": host})

    assert refusal is not None
    assert "admin_allowed_hosts" in refusal


def test_request_without_host_header_is_allowed() -> None:
    assert HOSTS.rejection({}) is None


def test_rejection_message_escapes_and_truncates_the_host_name() -> None:
    refusal = HOSTS.rejection({b"host": b"a\x1b[31m" + b"b" * 10_000})

    assert refusal is not None
    assert "\x1b" not in refusal
    assert len(refusal) < 250


def test_requests_from_the_console_page_are_allowed() -> None:
    assert HOSTS.rejection({b"host": b"127.0.0.1:9090", b"origin": b"http://127.0.0.1:9090"}) is None
    assert HOSTS.rejection({b"host": b"headgate.internal", b"origin": b"https://Headgate.internal"}) is None


@pytest.mark.parametrize(
    "origin",
    [b"http://attacker.example", b"http://127.0.0.1:9091", b"null", b"", b"file://127.0.0.1:9090", b"127.0.0.1:9090"],
)
def test_requests_from_other_origins_are_rejected(origin: bytes) -> None:
    assert HOSTS.rejection({b"host": b"127.0.0.1:9090", b"origin": origin}) is not None
