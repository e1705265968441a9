"""Which policy does a member apply, and which has it read and not applied yet?

A change of policy takes effect in the whole cell together. A process reads it and *stages* it; it applies it when the
scheduler does, or at once when it decides by itself. `PolicyAgreed` is issued once per staged policy.
"""

from headgate.core.events import BudgetsTold, PolicyChanged
from headgate.hosts.cell.member.orders import PolicyAgreed
from headgate.model.policy import Policy
from headgate.model.units import Instant


class MemberRules:
    __slots__ = ("_agreed", "_staged_at", "_told_hash", "budgets", "hash", "policy", "staged")

    def __init__(self, now: Instant) -> None:
        self.policy = Policy()
        self.hash = ""
        self.budgets: BudgetsTold | None = None
        """The latest report of what is spent."""
        self.staged = ""
        """Hash of the policy that this process has read and does not apply; empty if there is none."""
        self._staged_at = now
        self._agreed = False
        """Whether `PolicyAgreed` was issued for the staged policy."""
        self._told_hash = ""
        """Hash of the policy that the followed scheduler applies, by its latest entry."""

    def change(self, changed: PolicyChanged) -> None:
        self.policy, self.hash = changed.policy, changed.hash
        if self.staged == changed.hash:
            self.staged = ""

    def stage(self, policy_hash: str, now: Instant) -> list[PolicyAgreed]:
        self.staged = "" if policy_hash == self.hash else policy_hash
        self._staged_at, self._agreed = now, False
        return self.agree() if self.staged == self._told_hash else []

    def agree(self) -> list[PolicyAgreed]:
        """Apply what is staged."""
        if not self.staged or self._agreed:
            return []
        self._agreed = True
        return [PolicyAgreed(self.staged)]

    def waiting_since(self) -> Instant | None:
        """When the policy was staged that still waits to be applied; None if none does."""
        return self._staged_at if self.staged and not self._agreed else None

    # The scheduler that the member follows

    def follow_another(self) -> None:
        """Forget what the scheduler of the previous epoch applied."""
        self._told_hash = ""

    def scheduler_applies(self, policy_hash: str) -> list[PolicyAgreed]:
        self._told_hash = policy_hash
        return self.agree() if self.staged == policy_hash else []
