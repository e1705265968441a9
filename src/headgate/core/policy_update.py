"""Applies policy changes and operator overrides.

Queued requests are checked again in order of arrival. Running attempts continue with the limits that applied when they
were sent.
"""

from collections.abc import Mapping

from headgate.core.admission.admission import Admission
from headgate.core.admission.gate import Rejection, check_policy, readmission
from headgate.core.commands import Command
from headgate.core.overrides import Overrides
from headgate.core.request_state import Request
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.rules import Rules
from headgate.core.scheduler_state import SchedulerState
from headgate.core.termination import Termination
from headgate.model.live_settings import with_settings
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant, levels_of
from headgate.model.units import Instant, TenantId, after


class PolicyUpdate:
    __slots__ = ("_admission", "_given", "_overrides", "_state", "_termination")

    def __init__(self, state: SchedulerState, admission: Admission, endings: Termination) -> None:
        self._state = state
        self._admission = admission
        self._termination = endings
        self._overrides = Overrides(state.timer_heap)
        self._given = state.rules.policy
        """Policy as it was given, without the settings that operators have set."""

    def change(self, policy: Policy, policy_hash: str, now: Instant, out: list[Command]) -> None:
        """Applies the new policy immediately.

        If it differs from the policy in force only in some tenants, only those and their requests are visited, because
        a directory with many tenants changes often. Otherwise, the backlog is rebuilt.

        A queued request is rejected if its tenant or model no longer exists. It is classified again if its class no
        longer exists, and moves to other pools of its model if its pools no longer exist. Its target and deadlines stay
        the same.
        """
        before, self._given = self._given, policy
        if policy.differs_only_in_tenants(before):
            self._change_tenants(with_settings(policy, self._overrides.active), policy_hash, now, out)
            return
        self._overrides.change(policy.overrides, now)
        self._change_rules(policy_hash, now, out)

    def _change_rules(self, policy_hash: str, now: Instant, out: list[Command]) -> None:
        """Applies the policy and the overrides in force."""
        state, before = self._state, self._state.rules
        policy = with_settings(self._given, self._overrides.active)
        state.rules = rules = Rules(policy, policy_hash)
        state.retry_budget.change_rules(policy)
        state.retry_budget.change_tenants(rules.tenants.changes_since(before.tenants))
        state.hedging.change_policy(policy)
        state.fleet.change_rules(rules, now)
        state.queue.change_rules(rules)
        state.attempts.change_rules(rules, state.queue.backlog)
        waiting = [request for request in state.requests.by_id.values() if request.running is None]
        state.overload.change_rules(rules, waiting)
        state.budgets.change_rules(rules)
        interrupted = self._apply_overrides(now)
        for request in sorted(waiting, key=lambda each: each.sequence):
            self._reevaluate(request, now, out)
        self._termination.abort_attempts(interrupted, out)

    def _change_tenants(self, policy: Policy, policy_hash: str, now: Instant, out: list[Command]) -> None:
        state = self._state
        changes = state.rules.change_tenants(policy, policy_hash)
        state.retry_budget.change_tenants(changes)
        state.budgets.change_rules(state.rules, only_tenants=True)
        self._apply_limits(now)
        affected = [each for each in state.requests.by_id.values() if each.running is None and _concerns(each, changes)]
        for request in sorted(affected, key=lambda each: each.sequence):
            state.queue.backlog.remove(request)
            state.overload.dequeued(request)
            self._reevaluate(request, now, out)

    def _reevaluate(self, request: Request, now: Instant, out: list[Command]) -> None:
        state = self._state
        if request.fell_back:
            last = after(request.queued_since, state.queue.wait_ns_left(request, request.queued_since))
            verdict = readmission(request, state.fleet, state.rules, holds=state.queue.holds, last=last, now=now)
        else:
            # A request that has not been sent yet follows the new weights.
            route = request.route if request.attempts_made else ""
            verdict = check_policy(state.rules.without_unknown_names(request.ticket), state.rules, route)
        if isinstance(verdict, Rejection):
            state.queue.dequeue(request, now)
            self._termination.end(
                request, verdict.outcome, verdict.reason, now, out, retry_after=verdict.retry_after_ns
            )
        elif request.held_for is None:
            self._admission.assign(request, verdict, now)
            state.queue.push(request, now)
        else:
            held = state.queue.holds.remove(request)
            self._admission.assign(request, verdict, now)
            state.queue.update_hold(request, now, held=held)
            state.queue.push(request, now)

    # Operator overrides

    def expire(self, now: Instant, out: list[Command]) -> None:
        """Stops applying overrides that have expired."""
        settings = self._overrides.settings()
        if self._overrides.expire_due(now):
            if settings != self._overrides.settings():
                self._change_rules(self._state.rules.hash, now, out)
            else:
                self._apply_overrides(now)

    def _apply_overrides(self, now: Instant) -> list[EndpointRecord]:
        """Applies the active overrides and the tenant limits that result from them.

        Returns the endpoints whose attempts must be aborted.
        """
        state, orders = self._state, self._overrides
        self._apply_limits(now)
        state.rules.set_route_weights(orders.active)
        interrupted = state.fleet.drains.change(orders.drained_endpoints(), orders.interrupted_endpoints())
        state.overload.pin(orders.pinned_levels(), state.fleet, state.queue.min_shares)
        state.queue.backlog.held_classes = orders.held_classes()
        # Requests that are no longer held may fit into existing capacity.
        state.fleet.dispatchable.update(dict.fromkeys(state.fleet.pools))
        return interrupted

    def _apply_limits(self, now: Instant) -> None:
        state = self._state
        open_requests = (each.ticket for each in state.requests.by_id.values())
        state.limits.change_rules(state.rules.tenants, self._overrides.throttles(), open_requests, now)


def _concerns(request: Request, changes: Mapping[TenantId, Tenant | None]) -> bool:
    """Returns whether the request's tenant or a level above it has changed."""
    tenant = request.ticket.tenant
    return tenant in changes or ("/" in tenant and any(level in changes for level in levels_of(tenant)))
