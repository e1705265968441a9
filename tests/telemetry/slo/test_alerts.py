"""Every alert fires in its incident, and no alert fires on a healthy gateway. promtool evaluates the rules."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from headgate.slo.alert import RUNBOOKS
from headgate.slo.durations import DAY, HOUR, MINUTE
from headgate.slo.rules import rules
from tests.telemetry.slo.incidents import DAY_STEP_S, FEW_REQUESTS, HEALTHY, PROMISES, TROUBLES, YOUNG, day_and_night
from tests.telemetry.slo.promtool import Held, case_of, hold, only, promtool, quiet, text

RULES = rules(PROMISES)


def alerts() -> set[str]:
    return {str(rule["alert"]) for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}  # type: ignore[attr-defined]


def test_every_alert_has_an_incident_that_triggers_it() -> None:
    assert {trouble.alert for trouble in TROUBLES} == alerts()


@pytest.mark.process
def test_every_alert_fires_in_its_incident(tmp_path: Path) -> None:
    # Over several days, hourly evaluation is enough.
    looks_s = {each.alert: HOUR if each.after_s > DAY else each.step_s for each in TROUBLES}
    held = [Held(only(RULES, each.alert), [case_of(each)], looks_s[each.alert]) for each in TROUBLES]

    assert hold(tmp_path, *held) == ""


@pytest.mark.process
def test_no_alert_fires_on_a_healthy_gateway(tmp_path: Path) -> None:
    assert hold(tmp_path, Held(RULES, [quiet("healthy", HEALTHY, after_s=40 * MINUTE)])) == ""


@pytest.mark.process
def test_no_slow_burn_or_cost_alert_fires_in_a_healthy_week(tmp_path: Path) -> None:
    asked = only(RULES, "HeadgateErrorBudgetBurnSlow", "HeadgateTokenCostDrift", "HeadgateRequestCostDrift")
    week = quiet("a week", HEALTHY, after_s=8 * DAY, step_s=30 * MINUTE)

    assert hold(tmp_path, Held(asked, [week], HOUR)) == ""


@pytest.mark.process
def test_cost_increase_fires_an_alert_on_the_first_day(tmp_path: Path) -> None:
    held = [Held(only(RULES, each.alert), [case_of(each)], each.step_s) for each in YOUNG]

    assert hold(tmp_path, *held) == ""


def dearer(days: int, cost_of_one: Callable[[int], float], firing: Mapping[int, bool]) -> Held:
    """Expect `HeadgateRequestCostDrift` to fire, or not to fire, at these hours."""
    one = 'count(ALERTS{alertname="HeadgateRequestCostDrift",alertstate="firing"})'
    case = quiet("day and night", day_and_night(days, cost_of_one), after_s=days * DAY, step_s=DAY_STEP_S)
    case["promql_expr_test"] = [
        {"expr": one, "eval_time": text(hour * HOUR), "exp_samples": [{"labels": "{}", "value": 1}] if fires else []}
        for hour, fires in firing.items()
    ]
    return Held(only(RULES, "HeadgateRequestCostDrift"), [case], DAY_STEP_S)


@pytest.mark.process
def test_cost_increase_fires_an_alert_by_day_and_by_night(tmp_path: Path) -> None:
    """The cost rises at hour 49. Hour 52 is in the third night and hour 60 is noon on the third day."""
    from_then_on = dearer(3, lambda hour: 0.002 if hour >= 49 else 0.001, {48: False, 52: True, 60: True, 71: True})
    never = dearer(3, lambda _: 0.001, dict.fromkeys(range(2, 72, 2), False))

    assert hold(tmp_path, from_then_on, never) == ""


@pytest.mark.process
def test_nightly_cost_increase_fires_an_alert_only_in_the_first_week(tmp_path: Path) -> None:
    nightly = dearer(9, lambda hour: 0.002 if hour % 24 < 4 else 0.001, {27: True, 8 * 24 + 3: False})

    assert hold(tmp_path, nightly) == ""


@pytest.mark.process
def test_three_failed_requests_fire_no_alert(tmp_path: Path) -> None:
    few = {**HEALTHY, **FEW_REQUESTS}
    asked = only(RULES, "HeadgateErrorBudgetBurnFast", "HeadgateErrorBudgetBurn", "HeadgateErrorRateHigh")

    assert hold(tmp_path, *(Held(asked, [quiet("few", few, after_s=at * MINUTE)]) for at in (13, 20, 90))) == ""


@pytest.mark.process
def test_failing_test_group_is_reported(tmp_path: Path) -> None:
    [trouble] = [each for each in TROUBLES if each.alert == "HeadgateLoadShedding"]
    wrong = case_of(trouble)
    wrong["promql_expr_test"][0]["exp_samples"] = []

    assert "HeadgateLoadShedding" in hold(tmp_path, Held(RULES, [wrong]))


@pytest.mark.process
def test_alert_names_its_subject_and_runbook(tmp_path: Path) -> None:
    [trouble] = [each for each in TROUBLES if each.alert == "HeadgateIncident"]
    case = case_of(trouble)
    del case["promql_expr_test"]
    said = {
        "exp_labels": {"severity": "ticket", "pool": "small", "incident": "engine_hang"},
        "exp_annotations": {
            "summary": "pool small: engine_hang",
            "description": "The gateway has reported this incident for one minute. `headgate doctor --live` shows the"
            " evidence, the affected requests and the first step.",
            "runbook_url": f"{RUNBOOKS}/engine_hang.md",
        },
    }
    case["alert_rule_test"] = [{"eval_time": "5m", "alertname": "HeadgateIncident", "exp_alerts": [said]}]

    assert hold(tmp_path, Held(RULES, [case])) == ""


@pytest.mark.process
def test_gateway_incident_names_the_instance(tmp_path: Path) -> None:
    told = {
        f'headgate_incident{{pool="{pool}",incident="{incident}",instance="{instance}"}}': value
        for pool, incident, instance, value in (
            ("gateway", "scheduler_behind", "a:9090", "1"),
            ("gateway", "scheduler_behind", "b:9090", "0"),
            ("gateway", "healthy", "b:9090", "1"),
            # Both instances report the same incident in one pool.
            ("small", "engine_hang", "a:9090", "1"),
            ("small", "engine_hang", "b:9090", "1"),
        )
    }
    case = quiet("gateway", told, after_s=5 * MINUTE)
    firing = 'ALERTS{alertstate="firing"}'
    labels = 'alertname="HeadgateIncident",alertstate="firing",severity="ticket"'
    case["promql_expr_test"][0] |= {
        "expr": firing,
        "exp_samples": [
            {"labels": f'ALERTS{{{labels},pool="gateway",incident="scheduler_behind",instance="a:9090"}}', "value": 1},
            {"labels": f'ALERTS{{{labels},pool="small",incident="engine_hang"}}', "value": 1},
        ],
    }

    assert hold(tmp_path, Held(only(RULES, "HeadgateIncident"), [case])) == ""


@pytest.mark.process
def test_alert_templates_are_filled_in(tmp_path: Path) -> None:
    """promtool prints the alerts that it did not expect."""
    held: list[Held] = []
    for trouble in (each for each in TROUBLES if each.step_s == MINUTE):
        case = case_of(trouble)
        del case["promql_expr_test"]
        case["alert_rule_test"] = [{"eval_time": text(trouble.after_s), "alertname": trouble.alert, "exp_alerts": []}]
        held.append(Held(only(RULES, trouble.alert), [case]))

    said = hold(tmp_path, *held)

    assert "error expanding template" not in said
    assert [each.alert for each in TROUBLES if each.step_s == MINUTE and f'alertname="{each.alert}"' not in said] == []
    assert "{{" not in said
    assert "<no value>" not in said


@pytest.mark.process
def test_rules_pass_promtool_check(tmp_path: Path) -> None:
    for name, made in (("whole", RULES), ("scaled", rules(PROMISES, scale=1 / 60)), ("bare", rules(()))):
        (tmp_path / name).write_text(yaml.safe_dump(made))
        done = promtool("check", "rules", tmp_path / name)
        assert done.returncode == 0, done.stdout + done.stderr
