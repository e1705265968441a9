"""What do `headgate rules`, `dashboards` and `report` print, write and refuse?"""

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from headgate.cli.main import main
from testing.gateway import a_config, chat, gateway_in_loop
from testing.ports import free_port
from testing.simulated import engine_in_loop

OBJECTIVES = {"ttft_percent": 99, "served_percent": 99.5, "cost_per_1k_tokens": 0.01}
CLASSES = {"interactive": {"ttft": "5s", "objectives": OBJECTIVES}}


def a_file(folder: Path, **settings: object) -> Path:
    file = folder / "headgate.yaml"
    file.write_text(yaml.safe_dump(a_config("http://127.0.0.1:1", **settings)))
    return file


def test_rules_are_printed_as_yaml_with_the_objectives_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = a_file(tmp_path, classes=CLASSES)

    assert main(["rules", str(file), "--runbooks", "https://docs.example/runbooks/"]) == 0

    said = capsys.readouterr()
    alerts = [rule for group in yaml.safe_load(said.out)["groups"] for rule in group["rules"] if "alert" in rule]
    [fast] = [
        rule
        for rule in alerts
        if (rule["alert"], rule["labels"].get("objective")) == ("HeadgateObjectiveBurnsFast", "ttft")
    ]
    assert 'bad_ratio_1h{class="interactive",objective="ttft"} > 0.144' in fast["expr"]
    assert fast["annotations"]["runbook_url"] == "https://docs.example/runbooks/objective_burns.md"
    assert said.err == ""


def test_a_file_that_promises_nothing_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", str(a_file(tmp_path)), "--out", str(tmp_path / "rules.yaml")]) == 0

    said = capsys.readouterr()
    assert said.out == ""
    assert "rules.yaml is written; name it under rule_files" in said.err
    assert "promises nothing of any class; write classes.NAME.objectives" in said.err
    assert "HeadgateNoReadyEndpoint" in (tmp_path / "rules.yaml").read_text()


def test_rules_of_a_wrong_file_are_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path, models={"m": "nowhere"})

    assert main(["rules", str(file)]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_what_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path)

    assert main(["rules", str(file), "--out", str(tmp_path / "no" / "where")]) == 1
    assert main(["dashboards", "--out", str(file)]) == 1
    assert capsys.readouterr().err.count("cannot be written") == 2


def test_dashboards_are_written_to_the_folder(tmp_path: Path) -> None:
    assert main(["dashboards", "--out", str(tmp_path / "new")]) == 0
    assert len(list((tmp_path / "new").glob("headgate-*.json"))) == 7


def test_a_report_without_a_gateway_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path)

    assert main(["report", str(file), "--gateway", f"http://127.0.0.1:{free_port()}"]) == 1
    assert "start it, or name another by --gateway or --prometheus" in capsys.readouterr().err
    assert main(["report", str(file), "--prometheus", f"http://me:secret@127.0.0.1:{free_port()}"]) == 1
    assert "secret" not in capsys.readouterr().err
    assert main(["report", str(file), "--since", "1h"]) == 2
    assert "name a Prometheus for --since" in capsys.readouterr().err


async def test_a_report_of_a_live_gateway_says_that_the_promise_was_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with engine_in_loop(speed_up=20) as url:
        config = a_config(url, served_model="sim", classes=CLASSES)
        async with gateway_in_loop(config, tmp_path) as gateway:
            for _ in range(5):
                async with gateway.post(chat(stream=True, max_tokens=4)) as answer:
                    await answer.read()
                    assert answer.status == 200
            await gateway.until_idle()
            assert await asyncio.to_thread(main, ["report", str(gateway.file)]) == 0
            told = capsys.readouterr().out
            assert await asyncio.to_thread(main, ["report", "--json", str(gateway.file)]) == 0

    assert "interactive: promises latency, kept; 5 requests" in told
    assert "first token within 5 s for 99 %: measured 100.00% of 5" in told
    assert "quality    0.00% degraded" in told
    assert "cost       no price configured" in told
    [found] = [each for each in json.loads(capsys.readouterr().out)["classes"] if each["requests"]]
    assert (found["name"], found["kept"], found["consequences"]["quality"]) == ("interactive", True, "0.00% degraded")
