"""Prometheus rules for the objectives of a configuration."""

from collections.abc import Iterable, Iterator, Sequence

from headgate.slo import recording
from headgate.slo.alert import RUNBOOKS, Alert, Rule, rule_of
from headgate.slo.burning import burn_alerts
from headgate.slo.lengths import Length, lengths
from headgate.slo.promises import ClassPromises
from headgate.slo.saturation import incident_alert, queue_alert, saturation_alerts
from headgate.slo.serving import serving_alerts
from headgate.slo.spending import cost_objective_alert, drift_alerts
from headgate.slo.upkeep import cell_alerts, database_alerts, process_alerts

Group = dict[str, object]


def rules(promises: Sequence[ClassPromises], *, runbooks: str = RUNBOOKS, scale: float = 1.0) -> dict[str, list[Group]]:
    """Content of a rule file. `scale` shortens every window, for tests that cannot wait three days."""
    length = lengths(scale)
    recordings: dict[str, Iterable[Rule]] = {
        "headgate-tails": recording.tails(length),
        "headgate-objectives": recording.objectives(length),
        "headgate-costs": recording.costs(length),
        "headgate-usefulness": recording.usefulness(length),
    }
    groups: list[Group] = [{"name": name, "rules": list(made)} for name, made in recordings.items()]
    for name, alerts in alert_groups(promises, length):
        groups.append({"name": name, "rules": [rule_of(each, length, runbooks) for each in alerts]})
    return {"groups": [group for group in groups if group["rules"]]}


def alert_groups(promises: Sequence[ClassPromises], length: Length) -> Iterator[tuple[str, list[Alert]]]:
    yield "headgate-burns", [alert for each in promises for alert in burn_alerts(each)]
    spending = [alert for each in promises for alert in cost_objective_alert(each, length)]
    yield "headgate-spending", [*spending, *drift_alerts(length)]
    waiting = [alert for each in promises for alert in queue_alert(each)]
    yield "headgate-saturation", [incident_alert(), *saturation_alerts(length), *waiting]
    yield "headgate-serving", list(serving_alerts(length))
    yield "headgate-upkeep", [*process_alerts(length), *cell_alerts(), *database_alerts(length)]
