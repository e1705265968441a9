"""Configuration schema printed by `headgate generate config-schema`."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from headgate.cli.main import main
from headgate.config.traffic_shapes import SHAPES
from tests.cli.conftest import Headgate
from tests.house.small_tree import PROJECT

EXAMPLES = sorted(
    path for path in (PROJECT / "deploy").rglob("headgate.yaml") if not {"grafana", "templates"} & set(path.parts)
)
POOL = {"engine": "vllm", "endpoints": ["http://127.0.0.1:8000"]}
SMALL = {"pools": {"small": POOL}, "models": {"m": "small"}}


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("schema") / "schema.json"
    assert main(["generate", "config-schema", "--out", str(file)]) == 0
    return json.loads(file.read_text())


def errors(schema: dict[str, Any], config: Any) -> list[str]:
    return [each.message for each in Draft202012Validator(schema).iter_errors(config)]


def test_schema_is_a_valid_json_schema(schema: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)


def test_examples_exist() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: str(file.relative_to(PROJECT)))
def test_deployment_examples_conform(schema: dict[str, Any], file: Path) -> None:
    assert errors(schema, yaml.safe_load(file.read_text())) == []


@pytest.mark.parametrize("traffic", SHAPES)
def test_starter_configurations_conform(schema: dict[str, Any], headgate: Headgate, file: Path, traffic: str) -> None:
    assert headgate("init", "--traffic", traffic).code == 0

    assert errors(schema, yaml.safe_load(file.read_text())) == []


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"drain_grace": "30s", "zone": None, "limits": {"body_bytes_max": "${BODY_BYTES_MAX}"}},
        {"models": {"m": {"pools": "small"}, "n": ["small"]}},
        {"pools": {"small": {**POOL, "prices": {"per_hour": 2.5, "from": "2026-11-01"}, "kv_tokens": "400_000"}}},
        {"pools": {"small": {"engine": "vllm", "fleet": "static", "endpoints": "http://a:1"}}},
        {"classes": {"batch": None, "interactive": {"ttft": "unlimited", "caps": {"output_tokens": "unlimited"}}}},
        {"tenants": {"a": {"budgets": {"day": 100}}}, "database": "${DATABASE_URL}"},
    ],
    ids=["small", "units", "short models", "prices", "lone endpoint", "classes", "budgets"],
)
def test_valid_settings_conform(schema: dict[str, Any], change: dict[str, Any]) -> None:
    assert errors(schema, SMALL | change) == []


@pytest.mark.parametrize(
    "change",
    [
        {"heath": {}},
        {"drain_grace": 30},
        {"pools": {"small": {**POOL, "endpoints": {"url": "http://a:1"}}}},
        {"drain_grace": "soon"},
        {"listen": "localhost"},
        {"pools": {"small": {**POOL, "engine": "vlm"}}},
        {"pools": {"small": {**POOL, "in_flight_max": 0}}},
        {"pools": {"small": {**POOL, "speed": "fast"}}},
        {"pools": {"small": {"endpoints": ["http://127.0.0.1:8000"]}}},
        {"retry": {"tenant_budget_percent": 101}},
        {"shedding": {"enabled": "perhaps"}},
    ],
    ids=lambda change: json.dumps(change)[:40],
)
def test_invalid_settings_are_rejected(schema: dict[str, Any], change: dict[str, Any]) -> None:
    assert errors(schema, SMALL | change) != []


def test_schema_gives_defaults_in_configuration_file_notation(schema: dict[str, Any]) -> None:
    settings = schema["properties"]

    assert (settings["listen"]["default"], settings["drain_grace"]["default"]) == ("127.0.0.1:8080", "30s")
