"""Prometheus rules for a configuration's objectives."""

from collections.abc import Iterable, Iterator, Sequence

from headgate.slo import recording_rules
from headgate.slo.alert import RUNBOOKS, Alert, Rule, alert_rule
from headgate.slo.availability_alerts import availability_alerts
from headgate.slo.burn_rate import burn_rate_alerts
from headgate.slo.cost_alerts import cost_drift_alerts, cost_objective_alert
from headgate.slo.durations import DurationFormat, duration_format
from headgate.slo.gateway_alerts import cell_alerts, certificate_alerts, database_alerts, process_alerts
from headgate.slo.objectives import ClassObjectives
from headgate.slo.saturation_alerts import incident_alert, queue_wait_alert, saturation_alerts

Group = dict[str, object]


def rules(
    objectives: Sequence[ClassObjectives], *, runbooks: str = RUNBOOKS, scale: float = 1.0
) -> dict[str, list[Group]]:
    """Content of a rule file. `scale` shortens every window, because tests cannot wait for three days."""
    length = duration_format(scale)
    recordings: dict[str, Iterable[Rule]] = {
        "headgate-latency": recording_rules.latency_rules(length),
        "headgate-objectives": recording_rules.objective_rules(length),
        "headgate-costs": recording_rules.cost_rules(length),
        "headgate-goodput": recording_rules.goodput_rules(length),
    }
    groups: list[Group] = [{"name": name, "rules": list(made)} for name, made in recordings.items()]
    for name, alerts in alert_groups(objectives, length):
        groups.append({"name": name, "rules": [alert_rule(each, length, runbooks) for each in alerts]})
    return {"groups": [group for group in groups if group["rules"]]}


def alert_groups(objectives: Sequence[ClassObjectives], duration: DurationFormat) -> Iterator[tuple[str, list[Alert]]]:
    yield "headgate-burn-rate", [alert for each in objectives for alert in burn_rate_alerts(each)]
    spending = [alert for each in objectives for alert in cost_objective_alert(each, duration)]
    yield "headgate-cost-alerts", [*spending, *cost_drift_alerts(duration)]
    waiting = [alert for each in objectives for alert in queue_wait_alert(each)]
    yield "headgate-saturation", [incident_alert(), *saturation_alerts(duration), *waiting]
    yield "headgate-availability", list(availability_alerts(duration))
    of_process = [*process_alerts(duration), *certificate_alerts()]
    yield "headgate-gateway", [*of_process, *cell_alerts(), *database_alerts(duration)]
