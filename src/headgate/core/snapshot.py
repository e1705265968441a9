"""Creates and restores the snapshot that one scheduler passes to the next.

Each component provides and restores its own part. `counters` defines the contents.
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
from headgate.core.routing.fault_attribution import FaultAttribution
from headgate.core.routing.fleet import FleetState
from headgate.model.policy import Policy
from headgate.model.units import Instant


class Snapshotter(NamedTuple):
    queue: Queue
    limits: TenantLimits
    retry_budget: RetryBudget
    predictions: Predictions
    hedging: Hedging
    overload: Overload
    fleet: FleetState
    budgets: Budgets
    blame: FaultAttribution

    def counters(self, now: Instant) -> Counters:
        tenant_credits, windows = self.retry_budget.counters(now)
        return Counters(
            fair_queues=self.queue.backlog.fair_queue_counters(),
            min_shares=self.queue.min_shares.counters(),
            limits=self.limits.counters(now),
            retry_credits=tenant_credits,
            attempt_windows=windows,
            lengths=self.predictions.lengths(),
            prompts=self.predictions.prompts(),
            first_tokens=self.hedging.counters(),
            pool_groups=self.overload.counters(now),
            endpoints=self.fleet.counters(),
            cold_starts=self.queue.holds.counters(),
            budgets=self.budgets.counters(),
            quarantine=self.blame.counters(now),
        )

    def restore(self, counters: Counters, policy: Policy, *, taken_at: Instant, now: Instant) -> None:
        """Restores a snapshot taken at `taken_at`, omitting names that are no longer in the policy."""
        known = counters.restricted_to(policy)
        for each in known.fair_queues:
            self.queue.backlog.restore(each)
        self.queue.min_shares.restore(known.min_shares)
        self.limits.restore(known.limits, taken_at)
        self.retry_budget.restore(known.retry_credits, known.attempt_windows, taken_at)
        self.predictions.restore(known.lengths, known.prompts)
        self.hedging.restore(known.first_tokens)
        self.overload.restore(known.pool_groups, self.fleet, self.queue.min_shares, taken_at=taken_at, now=now)
        self.fleet.restore(known.endpoints)
        self.queue.holds.restore(known.cold_starts)
        self.budgets.restore(known.budgets)
        self.blame.restore(known.quarantine, taken_at)
