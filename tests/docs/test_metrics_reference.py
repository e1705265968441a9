"""The metrics reference lists exactly the exported metrics with their types and labels."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

from headgate.telemetry.catalogue import METRICS
from headgate.telemetry.meter_types import LARGE_PROMPT_TOKENS, MEDIUM_PROMPT_TOKENS
from headgate.telemetry.meters import TENANTS_MAX
from headgate.telemetry.metric_definition import MetricType
from testing.full_metrics_page import metrics_with_samples
from tests.house.small_tree import PROJECT, script

FILE = PROJECT / "docs/reference/metrics.md"
PAGE = FILE.read_text()


def described() -> dict[str, tuple[str, set[str]]]:
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| `headgate_")]
    return {name.strip(" `"): (kind.strip(), set(re.findall("`([a-z_]+)`", labels))) for name, kind, labels, _ in rows}


def checked(file: Path) -> tuple[int, str]:
    """Run the generator script with --check; return its exit status and output."""
    complaints = io.StringIO()
    with redirect_stdout(complaints):
        status = script("write_metrics_page").main(["--check", str(file)])
    return status, complaints.getvalue()


def test_page_lists_exactly_the_exported_metrics() -> None:
    assert described() == metrics_with_samples()


def test_gateway_exports_exactly_the_catalogue() -> None:
    assert {each.name: (each.type.value, set(each.labels)) for each in METRICS} == metrics_with_samples()


def test_page_describes_every_metric() -> None:
    assert [line for line in PAGE.splitlines() if line.startswith("| `headgate_") and not line.endswith(". |")] == []


def test_metric_names_follow_prometheus_conventions() -> None:
    for each in METRICS:
        assert (each.type is MetricType.COUNTER) == each.name.endswith("_total"), each
        assert not each.name.endswith(("_bucket", "_count", "_sum")), each


def test_metric_help_fits_one_line_and_a_table_cell() -> None:
    for each in METRICS:
        assert each.help.endswith("."), each
        assert "\n" not in each.help, each
        assert "|" not in each.help + each.note + each.exposed_when, each


def test_committed_page_is_up_to_date() -> None:
    done = checked(FILE)

    assert done == (0, "")


def test_check_reports_an_outdated_page(tmp_path: Path) -> None:
    changed = tmp_path / "metrics.md"
    changed.write_text(
        PAGE.replace("| `headgate_tracked_objects` | gauge |", "| `headgate_tracked_objects` | counter |")
    )

    done = checked(changed)

    assert done == (1, "metrics.md: is not what the catalogue says; run `just docs`\n")


def test_expressions_on_the_page_use_exported_metrics() -> None:
    asked = set(re.findall(r"headgate_[a-z0-9_]+", PAGE))

    assert {name for name in asked if name.removesuffix("_bucket") not in metrics_with_samples()} == set()


def test_page_shows_the_current_bounds() -> None:
    page = " ".join(PAGE.split())

    assert f"`small` below {MEDIUM_PROMPT_TOKENS:,} tokens, `medium` below {LARGE_PROMPT_TOKENS:,}" in page
    assert f"The {TENANTS_MAX} tenants" in page
