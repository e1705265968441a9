"""TLS options of pools, base paths of endpoints, and the files that are checked before a configuration is used."""

from pathlib import Path

import pytest

from headgate.config.load import load
from headgate.config.problems import ConfigErrors
from headgate.config.settings import PoolSettings, Settings
from headgate.config.tls_files import check_tls_files, tls_problems, tls_warnings
from headgate.control.options import file_stamp
from headgate.model.engine_profile import PROFILES
from headgate.ports.tls import ClientTlsOptions, certificate_validity
from testing.certificates import Authority
from tests.config.builders import ENGINES, SMALL, problems_of, settings_of, small_with_endpoint, warnings_of

DAY_S = 86_400


def small_with_tls(tls: str, url: str = "https://engine:8443") -> str:
    return small_with_endpoint(f'"{url}"').replace("engine: llamacpp", f"engine: llamacpp, tls: {tls}")


def with_fleet(fleet: str) -> str:
    return SMALL.lstrip().replace('endpoints: ["http://127.0.0.1:8081"]', f"fleet: {fleet}")


def pool_of(text: str) -> PoolSettings:
    [pool] = settings_of(text).pools
    return pool


def loaded(folder: Path, tls: str) -> Settings:
    file = folder / "headgate.yaml"
    file.write_text(small_with_tls(tls))
    return load(file, {}, engines=ENGINES, profiles=PROFILES)


def test_paths_are_relative_to_the_configuration_file(tmp_path: Path) -> None:
    [pool] = loaded(tmp_path, "{ca: tls/ca.pem, certificate: /etc/gw.pem, key: gw.key, server_name: engine}").pools

    assert pool.tls == ClientTlsOptions(str(tmp_path / "tls/ca.pem"), "/etc/gw.pem", str(tmp_path / "gw.key"), "engine")
    assert pool.uses_tls


@pytest.mark.parametrize(
    ("text", "uses_tls"),
    [
        (SMALL, False),
        (small_with_endpoint('"https://engine"'), True),
        (with_fleet("{kind: dns, name: e, port: 1}"), False),
        (
            with_fleet("{kind: dns, name: e, port: 1, scheme: https}"),
            True,
        ),
        (
            with_fleet('{kind: processes, command: "x {port}", scheme: https}'),
            True,
        ),
    ],
)
def test_pool_uses_tls_if_its_endpoints_have_https_urls(text: str, uses_tls: bool) -> None:
    assert pool_of(text).uses_tls is uses_tls


def test_key_without_a_certificate_is_rejected() -> None:
    assert problems_of(small_with_tls("{key: gw.key}")) == [
        "2: pools.small.tls.certificate: missing; set the PEM file with the certificate that belongs to key"
    ]


def test_tls_section_without_https_endpoints_is_reported() -> None:
    [warning] = warnings_of(small_with_tls("{ca: ca.pem}", "http://engine:1"))

    assert warning.startswith("2: pools.small.tls: has no effect, because no endpoint uses https; ")
    assert warning.endswith("use https in the endpoints' URLs, or remove it")


def test_unknown_scheme_is_rejected() -> None:
    assert problems_of(with_fleet("{kind: dns, name: e, port: 1, scheme: grpc}")) == [
        '2: pools.small.fleet.scheme: scheme "grpc" does not exist; use http or https'
    ]


def test_base_path_is_part_of_the_url_and_the_name_of_an_endpoint() -> None:
    text = SMALL.replace(
        '["http://127.0.0.1:8081"]', '["https://Proxy:8443/team-a/engine/", "https://proxy:8443/team-b"]'
    )

    assert [(each.id, each.url) for each in pool_of(text).endpoints] == [
        ("small/proxy:8443/team-a/engine", "https://proxy:8443/team-a/engine"),
        ("small/proxy:8443/team-b", "https://proxy:8443/team-b"),
    ]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://a/x/v1", 'ends with "/v1"'),
        ("http://a/x/v1/chat/completions", 'ends with "/v1/chat/completions"'),
        ("http://a/x/v2/models/m/infer", 'ends with "/v2/models/m/infer"'),
        ("http://a/x/metrics", 'ends with "/metrics"'),
        ("http://a/x?y=1", 'ends with "/x?y=1"'),
        ("http://a/x/../y", "has a base path with characters other than"),
        ("http://a//y", "has a base path with characters other than"),
        ("http://a/%2e", "has a base path with characters other than"),
        ("http://a/x y", "has a base path with characters other than"),
    ],
)
def test_invalid_base_path_is_rejected(url: str, problem: str) -> None:
    [found] = problems_of(small_with_endpoint(f'"{url}"'))

    assert problem in found


def test_usable_files_have_no_problems_or_warnings(tmp_path: Path) -> None:
    Authority(tmp_path).client("gw")
    settings = loaded(tmp_path, "{ca: ca.pem, certificate: gw.crt, key: gw.key}")

    assert check_tls_files(settings, "headgate.yaml") is settings
    assert list(tls_warnings(settings, "headgate.yaml")) == []


@pytest.mark.parametrize(
    ("tls", "problem"),
    [
        ("{ca: missing.pem}", "{}/missing.pem cannot be read: no such file or directory"),
        ("{ca: gw.key}", "{}/gw.key contains no PEM certificate"),
        (
            "{certificate: gw.crt, key: other.key}",
            "the key in {0}/other.key does not belong to the certificate in {0}/gw.crt",
        ),
        ("{certificate: gw.crt}", "{}/gw.crt contains no usable private key"),
    ],
)
def test_unusable_files_are_reported(tmp_path: Path, tls: str, problem: str) -> None:
    authority = Authority(tmp_path)
    authority.client("gw")
    authority.client("other")
    settings = loaded(tmp_path, tls)

    with pytest.raises(ConfigErrors) as caught:
        check_tls_files(settings, "headgate.yaml")
    [found] = caught.value.problems
    assert list(tls_problems(settings, "headgate.yaml")) == [found]
    assert str(found).startswith(f"headgate.yaml: pools.small.tls: {problem.format(tmp_path)}")
    assert str(found).endswith("; correct the file or its path")


def test_files_of_a_rejected_configuration_are_named_with_their_stamps(tmp_path: Path) -> None:
    """A gateway watches them, and reads the configuration again when one is corrected."""
    settings = loaded(tmp_path, "{ca: missing.pem}")

    with pytest.raises(ConfigErrors) as caught:
        check_tls_files(settings, "headgate.yaml")

    config = tmp_path / "headgate.yaml"
    assert caught.value.files == {config: file_stamp(config), tmp_path / "missing.pem": None}


def test_client_certificate_that_expires_soon_is_reported(tmp_path: Path) -> None:
    options = Authority(tmp_path).client("gw")
    assert options.certificate is not None
    expires_at = certificate_validity(options.certificate).expires_at
    settings = loaded(tmp_path, "{ca: ca.pem, certificate: gw.crt, key: gw.key}")

    def warnings_at(now_s: float) -> list[str]:
        return [str(each) for each in tls_warnings(settings, "headgate.yaml", now_s)]

    where = f"headgate.yaml: pools.small.tls: the certificate in {options.certificate}"
    assert warnings_at(expires_at - 14 * DAY_S) == []
    assert warnings_at(expires_at - 3.5 * DAY_S) == [f"{where} expires in 3 days; renew it"]
    assert warnings_at(expires_at) == [f"{where} has expired; renew it"]


def test_hash_depends_on_the_tls_options() -> None:
    one, two = (settings_of(small_with_tls(f"{{ca: {name}.pem}}")).hash for name in ("a", "b"))

    assert one != two != settings_of(small_with_endpoint('"https://engine:8443"')).hash


def test_hash_of_a_cell_does_not_depend_on_the_directory_of_the_files() -> None:
    cell = "cell: {name: c, store: 'redis://s', member_count: 2}\n"
    one, two = (settings_of(small_with_tls(f"{{ca: {path}/ca.pem}}") + cell).hash for path in ("/a", "/b"))

    assert one == two
