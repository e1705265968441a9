"""A member's policies: the one in force, and a staged one that it has read but not yet applied.

A policy change takes effect in the whole cell at the same time. A process reads the new policy and *stages* it. It
applies the policy when the scheduler does, or immediately if it is an island. `PolicyAgreed` is issued once per staged
policy.
"""

from headgate.core.events import BudgetsSynced, PolicyChanged, SharesAssigned
from headgate.hosts.cell.member.commands import PolicyAgreed
from headgate.model.policy import Policy
from headgate.model.units import Instant


class MemberRules:
    __slots__ = ("_agreed", "_scheduler_hash", "_staged_at", "budgets", "hash", "policy", "shares", "staged_hash")

    def __init__(self, now: Instant) -> None:
        self.policy = Policy()
        self.hash = ""
        self.budgets: BudgetsSynced | None = None
        """Latest spending report."""
        self.shares: SharesAssigned | None = None
        """Latest shares of limits. None if there is only one cell."""
        self.staged_hash = ""
        """Hash of a policy that this process has read but not applied. Empty if there is none."""
        self._staged_at = now
        self._agreed = False
        """Whether `PolicyAgreed` has been issued for the staged policy."""
        self._scheduler_hash = ""
        """Hash of the policy that the followed scheduler applies, from its latest entry."""

    def change(self, changed: PolicyChanged) -> None:
        self.policy, self.hash = changed.policy, changed.hash
        if self.staged_hash == changed.hash:
            self.staged_hash = ""

    def reports(self) -> list[BudgetsSynced | SharesAssigned]:
        """Returns what a new scheduler must know in addition to the policy."""
        return [each for each in (self.budgets, self.shares) if each is not None]

    def stage(self, policy_hash: str, now: Instant) -> list[PolicyAgreed]:
        self.staged_hash = "" if policy_hash == self.hash else policy_hash
        self._staged_at, self._agreed = now, False
        return self.apply_staged() if self.staged_hash == self._scheduler_hash else []

    def apply_staged(self) -> list[PolicyAgreed]:
        """Applies the staged policy."""
        if not self.staged_hash or self._agreed:
            return []
        self._agreed = True
        return [PolicyAgreed(self.staged_hash)]

    def staged_since(self) -> Instant | None:
        """Returns when the pending policy was staged, or None if no policy is pending."""
        return self._staged_at if self.staged_hash and not self._agreed else None

    # Followed scheduler

    def forget_scheduler_policy(self) -> None:
        """Forgets the policy of the previous epoch's scheduler."""
        self._scheduler_hash = ""

    def scheduler_applies(self, policy_hash: str) -> list[PolicyAgreed]:
        self._scheduler_hash = policy_hash
        return self.apply_staged() if self.staged_hash == policy_hash else []
