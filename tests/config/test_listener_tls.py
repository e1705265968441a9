"""TLS settings of the listeners."""

from pathlib import Path

import pytest

from headgate.ports.tls import ClientTlsOptions, ServerTlsOptions
from tests.config.builders import problems_of, settings_of, small_with

TLS = "listen_tls: {certificate: tls/tls.crt, key: /etc/tls.key}"
ADMIN = "admin_listen_tls: {certificate: a.crt, key: a.key, ca: ca.crt, server_name: gateway.internal}"
CELL = "cell: {store: 'redis://cache'}"


def here(name: str) -> str:
    return str(Path(name).absolute())


def test_listeners_have_no_tls_by_default() -> None:
    settings = settings_of(small_with())

    assert (settings.listen_tls, settings.admin_listen_tls, settings.admin_client_tls) == (None, None, None)


def test_paths_are_relative_to_the_file() -> None:
    assert settings_of(small_with(TLS)).listen_tls == ServerTlsOptions(here("tls/tls.crt"), "/etc/tls.key")


def test_admin_listener_has_options_for_its_clients() -> None:
    settings = settings_of(small_with(ADMIN))

    assert settings.admin_listen_tls == ServerTlsOptions(here("a.crt"), here("a.key"))
    assert settings.admin_client_tls == ClientTlsOptions(ca=here("ca.crt"), server_name="gateway.internal")


def test_gateways_present_their_own_certificate_if_clients_need_one() -> None:
    settings = settings_of(small_with("admin_listen_tls: {certificate: a.crt, key: a.key, client_ca: clients.crt}"))

    assert settings.admin_client_tls == ClientTlsOptions(certificate=here("a.crt"), key=here("a.key"))


def test_server_name_must_be_a_host_name() -> None:
    text = small_with("admin_listen_tls: {certificate: a, key: b, server_name: 'https://gateway'}")

    assert problems_of(text) == [
        "8: admin_listen_tls.server_name: is not a host name; write it without scheme and port"
    ]


@pytest.mark.parametrize("setting", [TLS, ADMIN])
def test_tls_changes_the_hash_only_without_a_cell(setting: str) -> None:
    assert settings_of(small_with(setting)).hash != settings_of(small_with()).hash
    assert settings_of(small_with(CELL, setting)).hash == settings_of(small_with(CELL)).hash
