"""Has every alert and every pattern its page, every page the same headings, and is every command in them real?"""

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from headgate.cli.main import VERBS
from headgate.model.verdict import Incident
from headgate.slo.alert import OF_THE_INCIDENT
from headgate.slo.lengths import lengths
from headgate.slo.rules import alert_groups
from tests.house.small_tree import PROJECT
from tests.telemetry.slo.incidents import PROMISES

FOLDER = PROJECT / "docs" / "operations" / "runbooks"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.stem != "README")
INDEX = (FOLDER / "README.md").read_text()
CLASSICS = {"latency_up_gpu_normal", "cost_up_without_traffic", "p99_after_launch"}
HEADINGS = ["What you see", "Why", "How to confirm", "What to do now", "What to change later"]
ALERTS = [alert for _, group in alert_groups(PROMISES, lengths()) for alert in group]


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def named_pages() -> set[str]:
    return {alert.runbook for alert in ALERTS} - {OF_THE_INCIDENT} | {incident.value for incident in Incident}


def test_every_alert_and_every_pattern_has_a_page_and_every_page_one_of_them() -> None:
    assert {page.stem for page in PAGES} == named_pages() | CLASSICS


def test_a_page_names_every_alert_that_leads_to_it() -> None:
    missing = [
        (alert.name, alert.runbook)
        for alert in ALERTS
        if alert.runbook != OF_THE_INCIDENT and f"`{alert.name}`" not in (FOLDER / f"{alert.runbook}.md").read_text()
    ]
    assert missing == []


def test_no_page_names_an_alert_that_does_not_exist() -> None:
    told = {
        name for page in (*PAGES, FOLDER / "README.md") for name in re.findall(r"`(Headgate\w+)`", page.read_text())
    }

    assert told <= {alert.name for alert in ALERTS}


def test_the_index_has_every_page_and_the_severity_of_every_alert() -> None:
    assert set(re.findall(r"^\| \[(\w+)\]\(\1\.md\)", INDEX, re.MULTILINE)) == {page.stem for page in PAGES}
    assert [a.name for a in ALERTS if f"`{a.name}` ({a.severity.value})" not in INDEX] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_headings_of_all_others_and_a_command_to_confirm_by(page: Path) -> None:
    title, *sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)

    assert title.startswith(f"# {page.stem}\n\n")
    assert [section.partition("\n")[0] for section in sections] == HEADINGS
    assert "$ headgate " in sections[2]
    assert all(len(section.partition("\n")[2].strip()) > 40 for section in sections)


@pytest.mark.parametrize("page", [*PAGES, FOLDER / "README.md"], ids=lambda page: page.stem)
def test_the_command_line_takes_every_command_of_a_page(page: Path) -> None:
    assert commands(page)
    for command in commands(page):
        program, verb, *rest = shlex.split(command)
        assert (program, verb in VERBS) == ("headgate", True), command
        parser = argparse.ArgumentParser(exit_on_error=False)
        import_module(f"headgate.cli.{verb}").add_arguments(parser)
        try:
            parser.parse_args(rest)
        except (SystemExit, argparse.ArgumentError) as error:
            pytest.fail(f"{command}: {error}")


def test_the_commands_that_alerts_name_are_real_too() -> None:
    named = [
        command.replace("{{ $labels.class }}", "interactive")
        for alert in ALERTS
        for command in re.findall(r"`(headgate [^`]+)`", alert.description)
    ]
    assert len(named) > 20
    for command in named:
        _, verb, *rest = shlex.split(command)
        parser = argparse.ArgumentParser()
        import_module(f"headgate.cli.{verb}").add_arguments(parser)
        parser.parse_args(rest)
