"""Database options and operator keys."""

import pytest

from headgate.config.load import parse
from headgate.config.problems import ConfigErrors
from headgate.config.settings import Settings
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES
from headgate.ports.admin_roles import Role

SMALL = """
key_secret: a secret of more than sixteen letters
pools: {small: {engine: vllm, served_model: m, in_flight_max: 4, endpoints: ["http://127.0.0.1:8081"]}}
models: {m: small}
"""
KEY = "hmac-sha256:" + 64 * "a"


def settings_of(text: str) -> Settings:
    return parse(SMALL + text, "headgate.yaml", {"PASSWORD": "geheim"}, engines=DIALECTS, profiles=PROFILES)


def problems_of(text: str) -> str:
    with pytest.raises(ConfigErrors) as raised:
        settings_of(text)
    return str(raised.value)


def test_database_url_is_shown_without_password() -> None:
    database = settings_of("database: postgresql://headgate:${PASSWORD}@db:5433/keys?sslmode=verify-full").database

    assert database is not None
    assert database.url == "postgresql://headgate:geheim@db:5433/keys?sslmode=verify-full"
    assert database.url_redacted == "postgresql://headgate:***@db:5433/keys?sslmode=verify-full"
    assert "geheim" not in repr(database)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://u:geheim@db/keys", "start it with postgresql://"),
        ("postgresql://u:geheim@db", "has no database name"),
        ("postgresql://u:geheim@/keys", "has no host"),
        ("postgresql://u:ge/heim@db/keys", "as %2F"),
        ("postgresql://u:geheim@db:port/keys", "is not a valid URL"),
        ("postgresql://u:geheim@db/keys?password=x", "after the question mark; only sslmode"),
        ("postgresql://u:geheim@db/keys?sslmode=maybe", "has an unknown sslmode"),
    ],
)
def test_invalid_database_url_is_reported_without_quoting_it(url: str, said: str) -> None:
    problems = problems_of(f"database: {{url: '{url}'}}")

    assert said in problems
    assert "geheim" not in problems
    assert "heim@" not in problems


def test_database_password_changes_the_hash() -> None:
    one, other = (settings_of(f"database: postgresql://u:{each}@db/keys") for each in ("one", "other"))

    assert one.hash != other.hash


def test_invalid_operator_keys_and_permissions_are_reported() -> None:
    assert settings_of(f"admin_keys: {{a: {{key: '{KEY}', permissions: [read, keys]}}}}").admin_keys[0].permissions == (
        "read",
        "keys",
    )
    assert 'did you mean "keys"' in problems_of(f"admin_keys: {{a: {{key: '{KEY}', permissions: [key]}}}}")
    assert "is empty" in problems_of(f"admin_keys: {{a: {{key: '{KEY}', permissions: []}}}}")
    assert "headgate keys hash" in problems_of("admin_keys: {a: {key: hg-plain, permissions: [read]}}")
    assert "hg-plain" not in problems_of("admin_keys: {a: {key: hg-plain, permissions: [read]}}")
    twice = f"admin_keys: {{a: {{key: '{KEY}', permissions: [read]}}, b: {{key: '{KEY}', permissions: [read]}}}}"
    assert "create one key per operator" in problems_of(twice)
    caller = f"tenants: {{t: {{keys: ['{KEY}']}}}}\nadmin_keys: {{a: {{key: '{KEY}', permissions: [read]}}}}"
    assert "also the key of a tenant" in problems_of(caller)


def test_operator_key_may_name_a_role() -> None:
    [key] = settings_of(f"admin_keys: {{a: {{key: '{KEY}', role: operator}}}}").admin_keys

    assert (key.role, key.permissions) == (Role.OPERATOR, ("operate", "read"))
    assert 'did you mean "viewer"' in problems_of(f"admin_keys: {{a: {{key: '{KEY}', role: viewr}}}}")
    both = f"admin_keys: {{a: {{key: '{KEY}', role: viewer, permissions: [read]}}}}"
    assert "cannot be combined with permissions" in problems_of(both)
    assert "permissions: missing; list some of read" in problems_of(f"admin_keys: {{a: {{key: '{KEY}'}}}}")


WHO = "tenants: {t: {}}\nanonymous_tenant: t\n"


def test_overrides_do_not_require_a_database_outside_a_cell() -> None:
    settings = settings_of(f"{WHO}admin_keys: {{a: {{key: '{KEY}', permissions: [read, operate]}}}}")

    assert settings.warnings == ()


def test_permission_requiring_a_database_causes_a_warning() -> None:
    [keys] = settings_of(f"{WHO}admin_keys: {{a: {{key: '{KEY}', permissions: [read, keys]}}}}").warnings
    cell = "cell: {store: 'redis://store:6379'}\n"
    of_cell = settings_of(f"{WHO}{cell}admin_keys: {{a: {{key: '{KEY}', permissions: [operate]}}}}").warnings

    assert "permissions[1]" in keys
    assert "needs a database" in keys
    assert any("cannot create overrides in a cell without a database; add database.url" in each for each in of_cell)


def test_database_keys_require_key_secret() -> None:
    text = SMALL.replace("key_secret: a secret of more than sixteen letters\n", "") + "database: postgresql://db/keys"
    with pytest.raises(ConfigErrors) as raised:
        parse(text, "headgate.yaml", {}, engines=DIALECTS, profiles=PROFILES)

    assert "headgate keys secret" in str(raised.value)
