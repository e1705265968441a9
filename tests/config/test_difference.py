"""Settings in effect, and what differs between two configurations."""

import re

import pytest
from msgspec import inspect

from headgate.config.difference import SettingDifference, setting_changes
from headgate.config.effective import effective_settings
from headgate.config.schema import ConfigFile
from tests.config.builders import SMALL, settings_of, small_with
from tests.config.variants import DIFFERENT, EQUIVALENT

SECRETS = {"S": "s" * 20, "T": "t" * 20}
EVERYTHING = """
listen_tls: {certificate: /c, key: /k, client_ca: /a}
admin_listen_tls: {certificate: /c, key: /k, ca: /a}
scaler_listen: 127.0.0.1:9191
key_secret: ${S}
database: {url: "postgresql://u:${S}@h/d"}
ledger: {spool_directory: /spool, metadata_keys: [unit], unit_key: unit}
tracing: {endpoint: "http://collector/${S}", headers: {a: "${S}"}}
records: {directory: /records}
audit: {directory: /audit}
notifications: "http://hook/${S}"
admin_keys: {ann: {key: "hmac-sha256:CDCD", permissions: [read]}}
identity:
  issuers:
    corp:
      issuer: https://login.example.com
      audience: headgate
      tenant: t
      required_claims: {groups: [llm]}
      tls: {ca: /a}
  operators:
    issuer: corp
    audience: operators
    roles: {admin: [platform]}
    login: {client_id: console, redirect_url: "https://h/login/callback", client_secret: "${S}"}
pools:
  a:
    engine: vllm
    served_model: x
    api_key: ${S}
    tls: {ca: /a}
    in_flight_max: 4
    endpoints: ["https://a"]
    batching: {}
    adapters: [{name: l, source: /l}]
    prices: [{from: 2026-01-01, per_hour: 2}]
  b:
    {engine: vllm, served_model: x, in_flight_max: 4, fleet: {kind: dns, name: engines, port: 80}}
  c:
    engine: vllm
    served_model: x
    in_flight_max: 4
    fleet: {kind: processes, command: [x, "{port}"], environment: {A: "${S}"}}
    scaling:
      endpoints_max: 2
      calendar: [{name: n, starts_at: 2026-01-01T00:00:00Z, ends_at: 2026-01-02T00:00:00Z, endpoints_min: 2}]
  d:
    {engine: vllm, served_model: x, in_flight_max: 4, fleet: {kind: ray, command: [x, "{port}"], python: /p}}
  e: {engine: vllm, served_model: x, in_flight_max: 4, endpoints: ["http://e"]}
models:
  m:
    pools: [a, b, c, d]
    tiers: [{pools: [a], classes: [interactive]}]
    routes: [{pools: a, mirror: b}]
    overflow: {pools: [e], after: 1s}
tenants: {t: {keys: ["hmac-sha256:ABAB"], budgets: {day: 1}}}
classes:
  interactive: {degradation_steps: [{level: 1}], stage_budget: {queue: 1s}}
  long: {}
  batch: {}
class_rules: [{class: long}]
""".replace("ABAB", "ab" * 32).replace("CDCD", "cd" * 32)

CELL = small_with('cell: {store: "redis://:${S}@h"}')
"""In a file of its own, because a cell's gateways start no engines."""

ELSEWHERE = {
    "models.*.routes[].mirror.fraction.denominator": "The percentage is listed.",
    "models.*.routes[].mirror.fraction.numerator": "The percentage is listed.",
    "models.*.routes[].mirror.model": "Its pools are listed.",
    "models.*.routes[].mirror.tier": "Its pools are listed.",
    "models.*.routes[].model": "Its pools are listed.",
    "models.*.routes[].tier": "Its pools are listed.",
    "pools.*.endpoints.*.name": "It is the path.",
    "pools.*.speed.profile": "The speeds of the profile are listed.",
}


def settings_in(info: inspect.Type, path: str) -> set[str]:
    """Paths of all settings in the schema, with `*` for names and `[]` for list items."""
    match info:
        case inspect.Metadata():
            return settings_in(info.type, path)
        case inspect.StructType():
            names = [(field.encode_name, field.type) for field in info.fields]
            return set().union(*(settings_in(kind, f"{path}.{name}" if path else name) for name, kind in names))
        case inspect.DictType(value_type=inspect.StructType() as each):
            return settings_in(each, f"{path}.*")
        case inspect.ListType(item_type=inspect.StructType() as each):
            return settings_in(each, f"{path}.*" if path.endswith("endpoints") else f"{path}[]")
        case inspect.UnionType():
            sections = (inspect.StructType, inspect.DictType, inspect.ListType)
            inner = [each for each in info.types if isinstance(each, sections)]
            return settings_in(inner[0], path) if inner else {path}
        case _:
            return {path}


def generic(path: str) -> str:
    """A setting's path without the names in it."""
    path = re.sub(r"\[\d+\]", "[]", path)
    path = re.sub(r"^identity\.issuers\.[^.]+", "identity.issuers.*", path)
    path = re.sub(r"^(pools|models|classes|tenants|admin_keys)\.[^.]+", r"\1.*", path)
    return re.sub(r"\.endpoints\..*\.(\w+)$", r".endpoints.*.\1", path)


def changes(before: str, after: str) -> list[SettingDifference]:
    return setting_changes(*(effective_settings(settings_of(text, SECRETS)) for text in (before, after)))


def test_every_setting_of_the_schema_is_listed_by_its_name() -> None:
    files = [effective_settings(settings_of(text, SECRETS)) for text in (EVERYTHING, CELL)]
    listed = {generic(path) for each in files for path, effective in each.items() if effective.text}
    known = settings_in(inspect.type_info(ConfigFile), "")

    assert listed - known == {"classes"}
    missing = known - listed - ELSEWHERE.keys()
    # The file has one budget and one stage budget, and names instead of lengths for these maps.
    assert {each for each in missing if ".budgets." not in each and ".stage_budget." not in each} == set()


@pytest.mark.parametrize("same", EQUIVALENT)
def test_equivalent_files_have_no_difference(same: str) -> None:
    assert changes(SMALL, same) == []


@pytest.mark.parametrize("other", DIFFERENT)
def test_every_change_of_the_hash_is_a_difference(other: str) -> None:
    assert changes(SMALL, other) != []
    assert changes(other, SMALL) != []


@pytest.mark.parametrize(
    ("lines", "change"),
    [
        ("drain_grace: 31s", ("drain_grace", "30s", "31s")),
        ("limits: {body_bytes_max: 1MiB}", ("limits.body_bytes_max", "32MiB", "1MiB")),
        ("retry: {timeout_cost: 3, tenant_budget_burst: 10}", ("retry.timeout_cost", "2", "3")),
        ("degradation: {escalate_above_percent: 120}", ("degradation.escalate_above_percent", "100", "120")),
        ("zone: east", ("zone", "not set", "east")),
        ("classes: {interactive: {ttft: 2s}, long: {}, batch: {}}", ("classes.interactive.ttft", "2s (default)", "2s")),
        ("classes: {interactive: {}, long: {}}", ("classes", "interactive, long, batch", "interactive, long")),
        ("class_rules: []", ("class_rules[0]", "", None)),
        ("records: {directory: /records}", ("records", None, "")),
    ],
)
def test_change_names_the_setting_and_both_values(lines: str, change: tuple[str, str, str]) -> None:
    assert changes(SMALL, small_with(lines))[0] == change


def test_added_object_is_one_change() -> None:
    added = SMALL.replace("demo: {}", "demo: {}\n  acme: {limits: {concurrency: 1}}")

    assert changes(SMALL, added) == [("tenants.acme", None, "")]
    assert changes(added, SMALL) == [("tenants.acme", "", None)]


def test_changes_are_in_the_order_of_the_sections() -> None:
    other = SMALL.replace("in_flight_max: 4", "in_flight_max: 5").replace("demo: {}", "demo: {weight: 1}")
    found = changes(SMALL, other + "zone: a\nlisten: 127.0.0.1:1\n")

    assert [each.setting for each in found] == [
        "pools.small.endpoints.small/127.0.0.1:8081.in_flight_max",
        "listen",
        "tenants.demo.weight",
        "zone",
    ]


def test_changed_secrets_are_differences_and_are_not_shown() -> None:
    found = [change for file in (EVERYTHING, CELL) for change in changes(file, file.replace("${S}", "${T}"))]

    assert [each.setting for each in found] == [
        "pools.a.api_key",
        "pools.c.fleet.environment",
        "key_secret",
        "identity.operators.login.client_secret",
        "database.url",
        "tracing.endpoint",
        "tracing.headers",
        "notifications.webhook",
        "cell.store",
    ]
    assert not any(secret in str(found) for secret in SECRETS.values())
