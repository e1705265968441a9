"""Every alert and incident pattern has a runbook; all runbooks have the same sections and only valid commands."""

import re
import shlex
from pathlib import Path

import pytest

from headgate.model.verdict import Incident
from headgate.slo.alert import INCIDENT_RUNBOOK
from headgate.slo.durations import duration_format
from headgate.slo.rules import alert_groups
from tests.docs.test_commands_in_docs import parser_error
from tests.house.small_tree import PROJECT
from tests.telemetry.slo.incidents import PROMISES

FOLDER = PROJECT / "docs" / "operations" / "runbooks"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.stem != "README")
INDEX = (FOLDER / "README.md").read_text()
CLASSICS = {"latency_up_gpu_normal", "cost_up_without_traffic", "p99_after_launch"}
HEADINGS = ["What you see", "Why", "How to confirm", "What to do now", "What to change later"]
ALERTS = [alert for _, group in alert_groups(PROMISES, duration_format()) for alert in group]


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def named_pages() -> set[str]:
    return {alert.runbook for alert in ALERTS} - {INCIDENT_RUNBOOK} | {incident.value for incident in Incident}


def test_runbooks_match_alerts_and_incident_patterns() -> None:
    assert {page.stem for page in PAGES} == named_pages() | CLASSICS


def test_runbook_mentions_every_alert_that_links_to_it() -> None:
    missing = [
        (alert.name, alert.runbook)
        for alert in ALERTS
        if alert.runbook != INCIDENT_RUNBOOK and f"`{alert.name}`" not in (FOLDER / f"{alert.runbook}.md").read_text()
    ]
    assert missing == []


def test_runbooks_mention_only_existing_alerts() -> None:
    told = {
        name for page in (*PAGES, FOLDER / "README.md") for name in re.findall(r"`(Headgate\w+)`", page.read_text())
    }

    assert told <= {alert.name for alert in ALERTS}


def test_index_lists_every_runbook_and_alert_severity() -> None:
    assert set(re.findall(r"^\| \[(\w+)\]\(\1\.md\)", INDEX, re.MULTILINE)) == {page.stem for page in PAGES}
    assert [a.name for a in ALERTS if f"`{a.name}` ({a.severity.value})" not in INDEX] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_runbook_has_all_sections_and_a_confirmation_command(page: Path) -> None:
    title, *sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)

    assert title.startswith(f"# {page.stem}\n\n")
    assert [section.partition("\n")[0] for section in sections] == HEADINGS
    assert "$ headgate " in sections[2]
    assert all(len(section.partition("\n")[2].strip()) > 40 for section in sections)


@pytest.mark.parametrize("page", [*PAGES, FOLDER / "README.md"], ids=lambda page: page.stem)
def test_runbook_commands_are_valid(page: Path) -> None:
    assert commands(page)
    for command in commands(page):
        program, *arguments = shlex.split(command)
        assert (program, parser_error(arguments)) == ("headgate", ""), command


def test_commands_in_alert_descriptions_are_valid() -> None:
    named = [
        command.replace("{{ $labels.class }}", "interactive")
        for alert in ALERTS
        for command in re.findall(r"`(headgate [^`]+)`", alert.description)
    ]
    assert len(named) > 20
    for command in named:
        _, *arguments = shlex.split(command)
        assert parser_error(arguments) == "", command
