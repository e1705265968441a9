"""The Compose file is valid, and its services start, become healthy and serve streams without a container engine."""

import json
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from headgate.cli.main import main
from headgate.config.load import parse
from headgate.config.settings import Settings
from headgate.edge.admin.allowed_hosts import AllowedHosts
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES
from headgate.model.units import SECOND
from testing.gateway import CHAT, chat
from tests.deploy.compose import (
    COMPOSE,
    SECRETS,
    MissingVariable,
    RunningServices,
    compose_file,
    running_services,
    seconds,
    services,
)
from tests.deploy.containerfile import all_of, steps
from tests.deploy.manifests import DEPLOY, the
from tests.deploy.tools import tools

GATEWAYS = ("gateway-1", "gateway-2")


def settings(name: str) -> Settings:
    text = (COMPOSE / "headgate/headgate.yaml").read_text()
    return parse(text, "headgate.yaml", services()[name]["environment"], engines=DIALECTS, profiles=PROFILES)


def scrape_targets() -> dict[str, list[str]]:
    config = yaml.safe_load((COMPOSE / "prometheus/prometheus.yaml").read_text())
    return {
        job["job_name"]: [target for each in job["static_configs"] for target in each["targets"]]
        for job in config["scrape_configs"]
    }


@pytest.mark.process
def test_file_matches_the_schema_of_the_compose_specification() -> None:
    schema = json.loads((tools() / "compose-spec.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    misspelled = compose_file()
    misspelled["services"]["redis"]["helthcheck"] = {}

    assert list(validator.iter_errors(compose_file())) == []
    assert list(validator.iter_errors(misspelled)) != []


@pytest.mark.parametrize("missing", sorted(SECRETS))
def test_file_requires_both_secrets(missing: str) -> None:
    others = {name: value for name, value in SECRETS.items() if name != missing}

    with pytest.raises(MissingVariable, match=rf"{missing}: write it to deploy/compose/\.env"):
        compose_file(others)


def test_every_mounted_file_and_build_file_exists() -> None:
    for name, service in services().items():
        sources = [each.split(":")[0] for each in service.get("volumes", [])]
        if "build" in service:
            sources.append(f"./{service['build']['context']}/{service['build']['dockerfile']}")
        missing = [each for each in sources if each.startswith(".") and not (COMPOSE / each).exists()]
        assert missing == [], name


def test_every_named_volume_is_declared() -> None:
    mounted = {each.split(":")[0] for service in services().values() for each in service.get("volumes", [])}

    assert {each for each in mounted if not each.startswith(".")} == set(compose_file()["volumes"])


def test_dependencies_have_the_health_checks_that_others_wait_for() -> None:
    every = services()
    for name, service in every.items():
        for needed, how in service.get("depends_on", {}).items():
            assert (how["condition"] == "service_healthy") == ("healthcheck" in every[needed]), name


def test_every_port_is_published_on_loopback_only() -> None:
    published = [port for service in services().values() for port in service.get("ports", [])]

    assert published
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in published)
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_headgate_services_use_the_image_and_command_of_the_deployment() -> None:
    _, last = steps()
    container = the("Deployment", "headgate").container
    ours = {name: each for name, each in services().items() if "build" in each}

    assert {each["image"] for each in ours.values()} == {container["image"]}
    assert all_of(last, "ENTRYPOINT") == ['["headgate"]']
    for each in GATEWAYS:
        assert ours[each]["command"] == container["args"]
    for each in ours.values():
        assert each["read_only"] is True
        assert each["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("name", GATEWAYS)
def test_configuration_loads_and_only_the_missing_key_is_a_warning(name: str) -> None:
    found = settings(name)
    [warning] = found.warnings

    assert "anonymous_tenant" in str(warning)
    assert found.cell is not None
    assert (found.cell.member_name, found.cell.member_count) == (name, len(GATEWAYS))


def test_gateways_may_drain_longer_than_the_longest_attempt() -> None:
    found = settings("gateway-1")
    longest = max(each.total_ns_max for each in found.policy.classes)
    grace = {seconds(services()[name]["stop_grace_period"]) * SECOND for name in GATEWAYS}

    assert longest < found.drain_grace_ns
    assert all(found.drain_grace_ns + 5 * SECOND <= each <= found.drain_grace_ns + 30 * SECOND for each in grace)


def test_prometheus_scrapes_every_gateway_and_engine_under_allowed_names() -> None:
    targets = scrape_targets()
    allowed = AllowedHosts(settings("gateway-1").admin_allowed_hosts)

    assert targets["headgate"] == [f"{name}:9090" for name in GATEWAYS]
    assert [allowed.rejection({b"host": target.encode()}) for target in targets["headgate"]] == [None, None]
    assert {f"http://{target}" for target in targets["engines"]} == {
        each.url for pool in settings("gateway-1").pools for each in pool.endpoints
    }


def test_rules_are_generated_from_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in services()["gateway-1"]["environment"].items():
        monkeypatch.setenv(name, value)
    runbooks = "http://127.0.0.1:9090/docs/operations/runbooks"
    config, out = str(COMPOSE / "headgate/headgate.yaml"), tmp_path / "rules.yaml"

    assert main(["generate", "rules", "--config", config, "--runbook-url", runbooks, "--out", str(out)]) == 0
    assert (COMPOSE / "prometheus/rules.yaml").read_text() == out.read_text(), "out of date; run `just docs`"


def test_grafana_reads_the_shipped_dashboards_and_prometheus() -> None:
    grafana = services()["grafana"]
    mounts = dict(each.split(":")[:2] for each in grafana["volumes"])
    [source] = yaml.safe_load((COMPOSE / "grafana/datasources/prometheus.yaml").read_text())["datasources"]
    [provider] = yaml.safe_load((COMPOSE / "grafana/dashboards/headgate.yaml").read_text())["providers"]
    directories = {target: (COMPOSE / path).resolve() for path, target in mounts.items()}

    assert directories[provider["options"]["path"]] == DEPLOY / "grafana"
    assert source["url"] == "http://prometheus:9090"
    assert grafana["profiles"] == ["grafana"]


@pytest.mark.process
@pytest.mark.timeout(600)
def test_services_start_and_both_gateways_serve_a_stream(tmp_path: Path) -> None:
    with running_services(tmp_path) as running:
        texts = [streamed(running, name) for name in GATEWAYS]
        admin = f"http://127.0.0.1:{running.port('gateway-1', 9090)}"
        status = json.loads(page(f"{admin}/status"))
        metrics = page(f"{admin}/metrics", host="gateway-1:9090")
        served = wait_for_samples(running, 'sum(headgate_requests_total{outcome="completed"}) >= 2', 1)
        up = wait_for_samples(running, "up == 1", 4)
        rules = query(running, "/api/v1/rules")["groups"]

    assert all(texts)
    assert status["cell"]["member"] in GATEWAYS
    assert "headgate_requests_total" in metrics
    assert {job: sum(each["metric"]["job"] == job for each in up) for job in ("headgate", "engines")} == {
        "headgate": 2,
        "engines": 2,
    }
    assert [each["value"][1] for each in served] == ["2"]
    assert {each["name"] for each in rules} >= {"headgate-objectives"}


def streamed(running: RunningServices, name: str) -> str:
    """Text of a stream through the gateway's published port."""
    url = f"http://127.0.0.1:{running.port(name, 8080)}{CHAT}"
    body = json.dumps(chat(model="demo", stream=True, max_tokens=8)).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=120) as answer:
        lines = [line.strip() for line in answer if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]"
    chunks = [json.loads(line[6:]) for line in lines[:-1]]
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"])


def page(url: str, *, host: str | None = None) -> str:
    headers = {"Host": host} if host else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        return answer.read().decode()


def query(running: RunningServices, path: str) -> Any:
    return json.loads(page(f"http://127.0.0.1:{running.port('prometheus', 9090)}{path}"))["data"]


def wait_for_samples(running: RunningServices, expression: str, count: int) -> list[Any]:
    """Wait until the query returns at least this many series."""
    path = f"/api/v1/query?query={urllib.parse.quote(expression)}"
    give_up_at = time.monotonic() + 120
    while len(found := query(running, path)["result"]) < count:
        assert time.monotonic() < give_up_at, f"{expression}: {found}"
        time.sleep(0.2)
    return found
