"""State shared by the parts of the scheduler.

Each attribute is a component with its own rules, such as the queue, the fleet or the limits. The admission, dispatcher,
termination, takeover and policy update modules work on the same components and look them up here on every use. `rules`
is replaced when the policy changes. All other components live as long as the scheduler.
"""

from headgate.core.admission.budgets import Budgets
from headgate.core.admission.limits import TenantLimits
from headgate.core.attempts import Attempts
from headgate.core.hedging import Hedging
from headgate.core.open_requests import OpenRequests
from headgate.core.overload import Overload
from headgate.core.prediction import Predictions
from headgate.core.queues.queue import Queue
from headgate.core.request_state import Request
from headgate.core.retry_budget import RetryBudget
from headgate.core.routing.fault_attribution import FaultAttribution
from headgate.core.routing.fleet import FleetState
from headgate.core.routing.router import LeastTimeRouter
from headgate.core.rules import Rules
from headgate.core.timers import TimerHeap
from headgate.model.policy import Policy
from headgate.model.units import RequestId


class SchedulerState:
    __slots__ = (
        "attempts",
        "blame",
        "budgets",
        "fleet",
        "hedging",
        "limits",
        "mirrors",
        "overload",
        "predictions",
        "queue",
        "requests",
        "retry_budget",
        "router",
        "rules",
        "timer_heap",
    )

    def __init__(self, *, scheduler_count: int, router: LeastTimeRouter) -> None:
        self.rules = rules = Rules(Policy(), policy_hash="")
        self.router = router
        self.timer_heap = TimerHeap()
        self.requests = OpenRequests(self.timer_heap)
        self.fleet = FleetState(rules, scheduler_count=scheduler_count)
        self.overload = Overload(rules)
        self.queue = Queue(rules, self.fleet, self.overload, self.timer_heap)
        self.predictions = Predictions()
        self.attempts = Attempts(rules, self.fleet, self.queue.backlog, self.predictions, self.timer_heap)
        self.retry_budget = RetryBudget(rules.policy.retry)
        self.hedging = Hedging(self.timer_heap)
        self.limits = TenantLimits()
        self.budgets = Budgets(rules)
        self.blame = FaultAttribution()
        self.mirrors: dict[RequestId, Request] = {}
        """Running copies of requests."""
