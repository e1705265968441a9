"""What of all that a scheduler knows is told to its successor, and taken over from its predecessor?

Each part tells what it alone knows, and takes it over again (`counters` says what that is).
"""

from typing import NamedTuple

from headgate.core.admission.budgets import Budgets
from headgate.core.admission.limits import TenantLimits
from headgate.core.counters import Counters
from headgate.core.hedging import Hedging
from headgate.core.overload import Overload
from headgate.core.prediction import Predictions
from headgate.core.queues.queue import Queue
from headgate.core.retry_budget import RetryBudget
from headgate.core.routing.blame import Blame
from headgate.core.routing.fleet import Fleet
from headgate.model.policy import Policy
from headgate.model.units import Instant


class Memory(NamedTuple):
    queue: Queue
    limits: TenantLimits
    retry_budget: RetryBudget
    predictions: Predictions
    hedging: Hedging
    overload: Overload
    fleet: Fleet
    budgets: Budgets
    blame: Blame

    def counters(self, now: Instant) -> Counters:
        tenant_credits, windows = self.retry_budget.counters(now)
        return Counters(
            turns=self.queue.backlog.turns(),
            floors=self.queue.floors.counters(),
            limits=self.limits.counters(now),
            credits=tenant_credits,
            windows=windows,
            lengths=self.predictions.lengths(),
            prompts=self.predictions.prompts(),
            first_tokens=self.hedging.counters(),
            routes=self.overload.counters(now),
            endpoints=self.fleet.counters(),
            starts=self.queue.holds.counters(),
            budgets=self.budgets.counters(),
            quarantine=self.blame.counters(now),
        )

    def restore(self, counters: Counters, policy: Policy, *, then: Instant, now: Instant) -> None:
        """Takes over what was told `then`, less what the policy does not name any more."""
        known = counters.known_to(policy)
        for each in known.turns:
            self.queue.backlog.restore(each)
        self.queue.floors.restore(known.floors)
        self.limits.restore(known.limits, then)
        self.retry_budget.restore(known.credits, known.windows, then)
        self.predictions.restore(known.lengths, known.prompts)
        self.hedging.restore(known.first_tokens)
        self.overload.restore(known.routes, self.fleet, self.queue.floors, then=then, now=now)
        self.fleet.restore(known.endpoints)
        self.queue.holds.restore(known.starts)
        self.budgets.restore(known.budgets)
        self.blame.restore(known.quarantine, then)
