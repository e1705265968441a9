"""The gateway starts with the configuration in the manifests and answers the probes that they define."""

import asyncio
from pathlib import Path

import pytest

from headgate.cli.main import main
from headgate.config.load import load
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES
from testing.gateway import Config, gateway_in_loop
from testing.ports import free_port
from tests.deploy.manifests import KUBERNETES, gateway_config, the

ENVIRONMENT = {"HEADGATE_KEY_SECRET": "x" * 43, "ENGINE_KEY": "y"}


def on_loopback() -> Config:
    """The configuration file, with loopback listeners and an engine address where nothing is listening."""
    config = gateway_config()
    ports = {setting: free_port() for setting in ("listen", "admin_listen", "scaler_listen")}
    config |= {setting: f"127.0.0.1:{port}" for setting, port in ports.items()}
    pool = config["pools"]["chat"]
    del pool["fleet"], pool["scaling"]
    pool["endpoints"] = [f"http://127.0.0.1:{free_port()}"]
    return config


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
def test_check_accepts_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "--config", str(KUBERNETES / "headgate.yaml")])
    said = capsys.readouterr()

    assert (code, said.err) == (0, "")
    assert "scaled from 1 to 8 endpoints" in said.out


def test_configuration_loads_without_warnings() -> None:
    found = load(KUBERNETES / "headgate.yaml", ENVIRONMENT, engines=DIALECTS, profiles=PROFILES)

    assert found.warnings == ()


@pytest.mark.usefixtures("environment")
async def test_gateway_answers_every_probe(tmp_path: Path) -> None:
    container = the("Deployment", "headgate").container
    monitor = the("ServiceMonitor", "headgate").spec["endpoints"][0]
    probes = [container[each]["httpGet"] for each in ("startupProbe", "livenessProbe", "readinessProbe")]
    paths = [*(probe["path"] for probe in probes), monitor["path"]]
    async with gateway_in_loop(on_loopback(), tmp_path, wait_for=0) as gateway:
        answers = []
        for path in (*paths, "/healthz"):
            async with gateway.http.get(gateway.admin_url + path) as answer:
                answers.append(answer.status)

    assert {probe["port"] for probe in probes} == {"admin"}
    assert answers == [200, 200, 200, 200, 404]


@pytest.mark.usefixtures("environment")
async def test_draining_gateway_is_alive_but_not_ready(tmp_path: Path) -> None:
    config = on_loopback() | {"anonymous_tenant": "team"}
    async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
        # An incomplete request keeps the gateway from exiting immediately.
        host, _, port = config["listen"].partition(":")
        _, caller = await asyncio.open_connection(host, int(port))
        caller.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await gateway.wait_for_status(lambda status: status["requests_open"] == 1)
        gateway.gateway.shut_down()
        await gateway.wait_for_status(lambda status: status["draining"])
        answers = []
        for path in ("/ready", "/health"):
            async with gateway.http.get(gateway.admin_url + path) as answer:
                answers.append(answer.status)
        caller.close()
        ended = await gateway.running

    assert answers == [503, 200]
    assert ended == 0
