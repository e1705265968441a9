"""Tests rules against metric series with promtool, which is part of Prometheus."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headgate.slo.durations import MINUTE, duration_format
from tests.telemetry.slo.incidents import HEALTHY, Trouble

FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'

File = Mapping[str, Any]

text = duration_format()


def promtool(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    found = shutil.which("promtool")
    assert found is not None, "promtool is missing; run `scripts/install_observability` to install it"
    return subprocess.run([found, *arguments], capture_output=True, text=True, check=False, timeout=50)


def series(values: Mapping[str, str], steps: int) -> list[dict[str, str]]:
    return [{"series": name, "values": _values(value, steps)} for name, value in values.items()]


def _values(value: str, steps: int, changed: str | None = None, at: int = 0) -> str:
    if "x" in value:
        return value
    if changed is None:
        return f"0{value}x{steps}" if value.startswith("+") else f"{value}x{steps}"
    begun = float(value) * at
    return f"0{value}x{at} {begun + float(changed):g}{changed}x{steps - at}"


def case_of(trouble: Trouble) -> dict[str, Any]:
    """A test group in which the incident's alert must fire. Other alerts may fire too."""
    steps, at = trouble.after_s // trouble.step_s + 1, trouble.changed_at_step
    told: dict[str, str] = {}
    for name, value in {**HEALTHY, **trouble.changed}.items():
        if name not in trouble.without:
            before = HEALTHY[name] if at and name in trouble.changed else value
            told[name] = _values(before, steps, value, at) if before != value else _values(value, steps)
    one = f'count(ALERTS{{alertname="{trouble.alert}",alertstate="firing"}}) > bool 0'
    return {
        "name": trouble.alert,
        "interval": text(trouble.step_s),
        "input_series": [{"series": name, "values": values} for name, values in told.items()],
        "promql_expr_test": [
            {"expr": one, "eval_time": text(trouble.after_s), "exp_samples": [{"labels": "{}", "value": 1}]}
        ],
    }


def quiet(name: str, values: Mapping[str, str], *, after_s: int, step_s: int = MINUTE) -> dict[str, Any]:
    """A test group in which no alert may fire."""
    return {
        "name": name,
        "interval": text(step_s),
        "input_series": series(values, after_s // step_s + 1),
        "promql_expr_test": [{"expr": FIRING, "eval_time": text(after_s), "exp_samples": []}],
    }


@dataclass(frozen=True, slots=True)
class Held:
    """Rules and the test groups for them."""

    rules: File
    cases: Sequence[Mapping[str, Any]]
    step_s: int = MINUTE


def hold(folder: Path, *held: Held) -> str:
    """promtool's output; empty if every test group passes."""
    files = [_written(each, folder, number) for number, each in enumerate(held)]
    done = promtool("test", "rules", *files)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _written(held: Held, folder: Path, number: int) -> Path:
    (folder / f"rules-{number}.yaml").write_text(yaml.safe_dump(held.rules))
    # Recording rules are evaluated first, because in production their results already exist.
    tests = {
        "rule_files": [f"rules-{number}.yaml"],
        "evaluation_interval": text(held.step_s),
        "group_eval_order": [group["name"] for group in held.rules["groups"]],
        "tests": [_with_what_is_asked_for(case, held.rules) for case in held.cases],
    }
    file = folder / f"tests-{number}.yaml"
    file.write_text(yaml.safe_dump(tests))
    return file


def _with_what_is_asked_for(case: Mapping[str, Any], rules: File) -> dict[str, Any]:
    """Drop series that no rule uses, to save time."""
    asked = " ".join(rule["expr"] for group in rules["groups"] for rule in group["rules"])
    told = [each for each in case["input_series"] if each["series"].partition("{")[0] in asked]
    return {**case, "input_series": told}


def only(rules: File, *alerts: str) -> File:
    """Keep only these alerts and their recording rules, to save time."""
    wanted = [rule for group in rules["groups"] for rule in group["rules"] if rule.get("alert") in alerts]
    asked = " ".join(rule["expr"] for rule in wanted)
    recorded = [rule for group in rules["groups"] for rule in group["rules"] if rule.get("record", "-") in asked]
    groups = [{"name": "recorded", "rules": recorded}, {"name": "alerts", "rules": wanted}]
    return {"groups": [group for group in groups if group["rules"]]}
