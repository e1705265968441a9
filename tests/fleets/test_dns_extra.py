"""How a fleet of kind `dns` behaves if dnspython is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from testing.fake_engine import FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from testing.ports import free_port

pytestmark = pytest.mark.process

WITHOUT = "import sys; sys.modules['dns'] = None; "
MAIN = "from headgate.cli.main import main; sys.exit(main(sys.argv[1:]))"
SAID = "pools.small.fleet: querying a name server requires dnspython; pip install 'headgate[dns]'"


def a_file(folder: Path, **fleet: object) -> str:
    config = a_config(listen=f"127.0.0.1:{free_port()}", admin_listen=f"127.0.0.1:{free_port()}")
    config["pools"]["small"].pop("endpoints", None)
    config["pools"]["small"]["fleet"] = {"kind": "dns", **fleet}
    (folder / "headgate.yaml").write_text(yaml.safe_dump(config))
    return str(folder / "headgate.yaml")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + MAIN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)


@pytest.fixture
def without_dnspython(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide dnspython, even if another test has imported it."""
    for name in ["dns", *(each for each in sys.modules if each.startswith("dns."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "headgate.fleets.dns.name_server", raising=False)


@pytest.mark.parametrize(
    "fleet",
    [{"name": "_http._tcp.engines.test"}, {"name": "engines.test", "port": 8000, "nameserver": "127.0.0.1:53"}],
    ids=["services", "a name server"],
)
def test_gateway_requiring_a_name_server_reports_the_missing_extra(tmp_path: Path, fleet: dict) -> None:
    done = run("serve", "--config", a_file(tmp_path, **fleet))

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"headgate: {SAID}"


def test_doctor_reports_the_missing_extra(tmp_path: Path) -> None:
    done = run("doctor", "--config", a_file(tmp_path, name="_http._tcp.engines.test"))

    assert done.returncode == 1
    assert "pools.small.fleet: cannot query a name server: dnspython is not installed" in done.stdout
    assert "pip install 'headgate[dns]'" in done.stdout


def test_doctor_does_not_require_the_extra_with_the_system_resolver(tmp_path: Path) -> None:
    assert "dnspython" not in run("doctor", "--config", a_file(tmp_path, name="localhost", port=8000)).stdout


@pytest.mark.usefixtures("without_dnspython")
async def test_gateway_uses_the_system_resolver_without_the_extra(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config()
        config["pools"]["small"]["fleet"] = {
            "kind": "dns",
            "name": "127.0.0.1",
            "port": engine.port,
            "resolve_interval": "50ms",
        }
        async with gateway_in_loop(config, tmp_path, wait_for=1) as gateway:
            async with gateway.post(chat()) as answer:
                assert answer.status == 200


@pytest.mark.usefixtures("without_dnspython")
async def test_reload_requiring_the_extra_keeps_the_endpoints_and_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeEngine() as engine:
        config = a_config()
        fleet = {"kind": "dns", "name": "127.0.0.1", "port": engine.port, "resolve_interval": "20ms"}
        config["pools"]["small"]["fleet"] = fleet
        async with gateway_in_loop(config, tmp_path, wait_for=1) as gateway:
            fleet["nameserver"] = "127.0.0.1:53"
            await gateway.rewrite(config)
            await gateway.wait_for_status(lambda _: SAID in str([vars(record) for record in caplog.records]))
            assert [each["id"] for each in (await gateway.status())["endpoints"]] == [f"small/127.0.0.1:{engine.port}"]


def test_base_install_does_not_import_dnspython() -> None:
    program = "import sys, headgate.compose.gateway, headgate.cli.main; print('dns' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
