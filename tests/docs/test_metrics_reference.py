"""Does the reference of the metrics name every metric with its kind and labels, and no other?"""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

from headgate.telemetry.catalogue import METRICS
from headgate.telemetry.counts import LARGE_TOKENS, MEDIUM_TOKENS
from headgate.telemetry.described import Kind
from headgate.telemetry.meters import TENANTS_MAX
from testing.everything_told import told
from tests.house.small_tree import PROJECT, script

FILE = PROJECT / "docs/reference/metrics.md"
PAGE = FILE.read_text()


def described() -> dict[str, tuple[str, set[str]]]:
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| `headgate_")]
    return {name.strip(" `"): (kind.strip(), set(re.findall("`([a-z_]+)`", labels))) for name, kind, labels, _ in rows}


def checked(file: Path) -> tuple[int, str]:
    """The exit status of the script that writes them, and its complaints."""
    complaints = io.StringIO()
    with redirect_stdout(complaints):
        status = script("write_metrics_page").main(["--check", str(file)])
    return status, complaints.getvalue()


def test_every_metric_is_on_the_page_and_no_other() -> None:
    assert described() == told()


def test_every_metric_of_the_catalogue_is_told_and_no_other() -> None:
    assert {each.name: (each.kind.value, set(each.labels)) for each in METRICS} == told()


def test_every_metric_has_a_meaning() -> None:
    assert [line for line in PAGE.splitlines() if line.startswith("| `headgate_") and not line.endswith(". |")] == []


def test_names_end_as_prometheus_has_them() -> None:
    for each in METRICS:
        assert (each.kind is Kind.COUNTER) == each.name.endswith("_total"), each
        assert not each.name.endswith(("_bucket", "_count", "_sum")), each


def test_what_is_said_of_a_metric_fits_into_a_line_and_a_table() -> None:
    for each in METRICS:
        assert each.help.endswith("."), each
        assert "\n" not in each.help, each
        assert "|" not in each.help + each.note + each.shown_when, each


def test_writing_the_page_anew_changes_nothing() -> None:
    done = checked(FILE)

    assert done == (0, "")


def test_a_page_that_differs_from_the_catalogue_is_named(tmp_path: Path) -> None:
    changed = tmp_path / "metrics.md"
    changed.write_text(PAGE.replace("| `headgate_held` | gauge |", "| `headgate_held` | counter |"))

    done = checked(changed)

    assert done == (1, "metrics.md: is not what the catalogue says; run `just docs`\n")


def test_what_expressions_on_the_page_ask_for_is_told() -> None:
    asked = set(re.findall(r"headgate_[a-z0-9_]+", PAGE))

    assert {name for name in asked if name.removesuffix("_bucket") not in told()} == set()


def test_the_bounds_that_the_page_names_are_those_in_force() -> None:
    assert f"`small` below {MEDIUM_TOKENS:,} tokens, `medium` below {LARGE_TOKENS:,}" in PAGE
    assert f"The {TENANTS_MAX} tenants" in PAGE
