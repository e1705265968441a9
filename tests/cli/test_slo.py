"""Output and errors from `headgate generate` and `headgate report`."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from headgate.cli.main import main
from testing.gateway import a_config, chat, gateway_in_loop
from testing.ports import free_port
from testing.simulated_engines import engine_in_loop

OBJECTIVES = {"ttft_percent": 99, "availability_percent": 99.5, "cost_per_1k_tokens": 0.01}
CLASSES = {"interactive": {"ttft": "5s", "objectives": OBJECTIVES}}


def a_file(folder: Path, **settings: object) -> Path:
    file = folder / "headgate.yaml"
    file.write_text(yaml.safe_dump(a_config("http://127.0.0.1:1", **settings)))
    return file


def test_rules_are_printed_as_yaml_with_the_configured_objectives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = a_file(tmp_path, classes=CLASSES)

    assert main(["generate", "rules", "--config", str(file), "--runbook-url", "https://docs.example/runbooks/"]) == 0

    said = capsys.readouterr()
    alerts = [rule for group in yaml.safe_load(said.out)["groups"] for rule in group["rules"] if "alert" in rule]
    [fast] = [
        rule
        for rule in alerts
        if (rule["alert"], rule["labels"].get("objective")) == ("HeadgateErrorBudgetBurnFast", "ttft")
    ]
    assert 'bad_ratio_1h{class="interactive",objective="ttft"} > 0.144' in fast["expr"]
    assert fast["annotations"]["runbook_url"] == "https://docs.example/runbooks/error_budget_burn.md"
    assert said.err == ""


@pytest.mark.parametrize(
    ("address", "runbooks", "hint"),
    [
        ("10.0.0.1:9090", "http://10.0.0.1:9090/docs/operations/runbooks", False),
        ("127.0.0.1:9090", "http://127.0.0.1:9090/docs/operations/runbooks", True),
        ("0.0.0.0:9090", "http://127.0.0.1:9090/docs/operations/runbooks", True),
        ("127.0.0.1:0", "/docs/operations/runbooks", False),
    ],
)
def test_rules_link_to_runbooks_on_the_admin_listener(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str, runbooks: str, hint: bool
) -> None:
    file = a_file(tmp_path, classes=CLASSES, admin_listen=address)

    assert main(["generate", "rules", "--config", str(file)]) == 0

    said = capsys.readouterr()
    assert f"runbook_url: {runbooks}/no_ready_endpoint.md\n" in said.out
    assert ("set --runbook-url" in said.err) is hint


def test_file_without_objectives_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "rules", "--config", str(a_file(tmp_path)), "--out", str(tmp_path / "rules.yaml")]) == 0

    said = capsys.readouterr()
    assert said.out == ""
    assert "rules.yaml; add it to rule_files" in said.err
    assert "has no objectives; set classes.NAME.objectives" in said.err
    assert "HeadgateNoReadyEndpoint" in (tmp_path / "rules.yaml").read_text()


def test_invalid_file_generates_no_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path, models={"m": "nowhere"})

    assert main(["generate", "rules", "--config", str(file)]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_unwritable_output_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path)

    assert main(["generate", "rules", "--config", str(file), "--out", str(tmp_path / "no" / "where")]) == 1
    assert main(["generate", "dashboards", "--out", str(file)]) == 1
    assert capsys.readouterr().err.count("cannot write ") == 2


def test_dashboards_are_written_to_the_directory(tmp_path: Path) -> None:
    assert main(["generate", "dashboards", "--out", str(tmp_path / "new")]) == 0
    assert len(list((tmp_path / "new").glob("headgate-*.json"))) == 7


def test_missing_gateway_is_reported_with_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path)

    assert main(["report", "--config", str(file), "--url", f"http://127.0.0.1:{free_port()}"]) == 1
    assert "start it, or specify another server with --url or --prometheus-url" in capsys.readouterr().err
    assert main(["report", "--config", str(file), "--prometheus-url", f"http://me:secret@127.0.0.1:{free_port()}"]) == 1
    assert "secret" not in capsys.readouterr().err
    assert main(["report", "--config", str(file), "--since", "1h"]) == 2
    assert "--since requires --prometheus-url" in capsys.readouterr().err


async def test_report_from_a_running_gateway_shows_objectives_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with engine_in_loop(speed_up=20) as url:
        config = a_config(url, served_model="sim", classes=CLASSES)
        async with gateway_in_loop(config, tmp_path) as gateway:
            for _ in range(5):
                async with gateway.post(chat(stream=True, max_tokens=4)) as answer:
                    await answer.read()
                    assert answer.status == 200
            await gateway.wait_until_idle()
            assert await asyncio.to_thread(main, ["report", "--config", str(gateway.file)]) == 0
            told = capsys.readouterr().out
            assert await asyncio.to_thread(main, ["report", "--json", "--config", str(gateway.file)]) == 0

    assert "interactive: optimizes for latency; objectives met; 5 requests" in told
    assert "first token within 5 s for 99 %: measured 100.00% of 5" in told
    assert "quality    0.00% degraded" in told
    assert "cost       no price configured" in told
    [found] = [each for each in json.loads(capsys.readouterr().out)["classes"] if each["requests"]]
    assert (found["name"], found["met"], found["tradeoffs"]["quality"]) == ("interactive", True, "0.00% degraded")
