"""Rules and panels use only existing metrics and labels, and every metric is on a panel."""

import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from headgate.cli.generate import dashboard_files
from headgate.slo.dashboards import DASHBOARDS, NOT_SHOWN
from headgate.slo.measurements import REQUIRED_SERIES
from headgate.slo.rules import rules
from headgate.telemetry.catalogue import BY_NAME
from tests.house.small_tree import PROJECT
from tests.telemetry.slo.expressions import grouped_in, metrics_in, problems_in, recorded_in
from tests.telemetry.slo.grafana import DASHBOARD
from tests.telemetry.slo.incidents import PROMISES
from tests.telemetry.slo.promtool import promtool

RULES = [rule for group in rules(PROMISES)["groups"] for rule in group["rules"]]  # type: ignore[attr-defined]
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
ALERTS = [rule for rule in RULES if "alert" in rule]
QUERIES = [
    (board.uid, panel.title, expr) for board in DASHBOARDS for panel in board.panels for expr, _ in panel.queries
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_rule_uses_only_existing_metrics_and_labels(rule: dict[str, str]) -> None:
    assert problems_in(rule["expr"]) == []
    assert recorded_in(rule["expr"]) <= RECORDED.keys()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alert_annotations_use_only_its_own_labels(rule: dict[str, str]) -> None:
    spoken = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    of_recorded = {label for name in recorded_in(rule["expr"]) for label in grouped_in(RECORDED[name])} - {"le"}

    assert spoken <= grouped_in(rule["expr"]) | of_recorded


def test_panel_queries_use_only_existing_metrics_and_labels() -> None:
    assert [(*query, problems_in(query[2])) for query in QUERIES if problems_in(query[2])] == []
    assert {name for *_, expr in QUERIES for name in recorded_in(expr)} <= RECORDED.keys()


def test_every_metric_appears_on_a_panel_or_is_exempted_with_a_reason() -> None:
    shown = {name for *_, expr in QUERIES for name in metrics_in(expr)}

    assert sorted(BY_NAME.keys() - shown - NOT_SHOWN.keys()) == []
    assert sorted(NOT_SHOWN.keys() & shown) == []
    assert sorted(NOT_SHOWN.keys() - BY_NAME.keys()) == []


def test_report_uses_only_existing_series_and_labels() -> None:
    queries = [f"sum by ({', '.join(labels)}) ({series})" for series, labels in REQUIRED_SERIES.items()]

    assert [problem for query in queries for problem in problems_in(query)] == []


def test_unknown_metrics_and_labels_are_detected() -> None:
    assert problems_in('sum by (colour) (rate(headgate_nothing_total{class="a"}[5m]))') == [
        "unknown metric headgate_nothing_total",
        'sum by (colour) (rate(headgate_nothing_total{class="a"}[5m])) has no label colour',
    ]
    assert problems_in('headgate_queue_depth{colour="red"}') == ["headgate_queue_depth has no label colour"]


@pytest.mark.process
def test_every_panel_query_passes_promtool_check(tmp_path: Path) -> None:
    made = [{"record": f"query_{number}", "expr": expr} for number, (*_, expr) in enumerate(QUERIES)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": made}]}))

    done = promtool("check", "rules", tmp_path / "queries.yaml")

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "text"), list(dashboard_files()), ids=[name for name, _ in dashboard_files()])
def test_dashboard_matches_the_schema_and_the_committed_file(name: str, text: str) -> None:
    made = json.loads(text)

    assert [error.message for error in Draft202012Validator(DASHBOARD).iter_errors(made)] == []
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    assert (PROJECT / "deploy/grafana" / name).read_text() == text, "the file is out of date; run `just docs`"


def test_no_other_dashboards_are_committed() -> None:
    assert {path.name for path in (PROJECT / "deploy/grafana").glob("*.json")} == {
        name for name, _ in dashboard_files()
    }
