"""What do the subjects of the scheduler share?

Each attribute is a part with rules of its own: the queue, the fleet, the limits and so on. Admission, dispatcher,
endings, takeover and policy update all work on the same ones, and look them up here whenever they need them. `rules` is
replaced when the policy changes; everything else lives as long as the scheduler.
"""

from headgate.core.admission.budgets import Budgets
from headgate.core.admission.limits import TenantLimits
from headgate.core.alarms import Agenda
from headgate.core.attempts import Attempts
from headgate.core.hedging import Hedging
from headgate.core.open_requests import OpenRequests
from headgate.core.overload import Overload
from headgate.core.prediction import Predictions
from headgate.core.queues.queue import Queue
from headgate.core.retry_budget import RetryBudget
from headgate.core.routing.blame import Blame
from headgate.core.routing.fleet import Fleet
from headgate.core.routing.least_seconds import LeastSeconds
from headgate.core.rules import Rules
from headgate.model.policy import Policy


class SchedulerState:
    __slots__ = (
        "agenda",
        "attempts",
        "blame",
        "budgets",
        "fleet",
        "hedging",
        "limits",
        "overload",
        "predictions",
        "queue",
        "requests",
        "retry_budget",
        "router",
        "rules",
    )

    def __init__(self, *, counted_by: int, router: LeastSeconds) -> None:
        self.rules = rules = Rules(Policy(), policy_hash="")
        self.router = router
        self.agenda = Agenda()
        self.requests = OpenRequests(self.agenda)
        self.fleet = Fleet(rules, counted_by=counted_by)
        self.overload = Overload(rules)
        self.queue = Queue(rules, self.fleet, self.overload, self.agenda)
        self.predictions = Predictions()
        self.attempts = Attempts(rules, self.fleet, self.queue.backlog, self.predictions, self.agenda)
        self.retry_budget = RetryBudget(rules.policy.retry)
        self.hedging = Hedging(self.agenda)
        self.limits = TenantLimits()
        self.budgets = Budgets(rules)
        self.blame = Blame()
