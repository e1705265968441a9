"""What changes at once when the policy or an operator's order does?

What waits is judged anew, in the order of arrival. What is in flight runs to its end under the limits it was sent with.
"""

from headgate.core.admission.admission import Admission
from headgate.core.admission.gate import Refusal, again, judge
from headgate.core.commands import Command
from headgate.core.endings import Endings
from headgate.core.orders import Orders
from headgate.core.rules import Rules
from headgate.core.scheduler_state import SchedulerState
from headgate.core.state import Request
from headgate.model.policy import Policy
from headgate.model.units import Instant


class PolicyUpdate:
    __slots__ = ("_admission", "_endings", "_orders", "_state")

    def __init__(self, state: SchedulerState, admission: Admission, endings: Endings) -> None:
        self._state = state
        self._admission = admission
        self._endings = endings
        self._orders = Orders(state.agenda)

    def change(self, policy: Policy, policy_hash: str, now: Instant, out: list[Command]) -> None:
        """Takes the new policy at once.

        A waiting request whose tenant or model has gone is refused for that reason, one whose class has gone is
        classified again, and one whose pools have gone moves to those that serve its model. It keeps the time by which
        it must be served, and its caller's deadlines.
        """
        state = self._state
        state.rules = rules = Rules(policy, policy_hash)
        state.retry_budget.change_rules(policy)
        state.hedging.change_policy(policy)
        self._orders.change(policy.orders, now)
        state.fleet.change_rules(rules, now)
        state.queue.change_rules(rules)
        state.attempts.change_rules(rules, state.queue.backlog)
        waiting = [request for request in state.requests.by_id.values() if request.running is None]
        state.overload.change_rules(rules, waiting)
        state.budgets.change_rules(rules)
        self._follow_orders(now)
        for request in sorted(waiting, key=lambda each: each.sequence):
            self._judge_anew(request, now, out)

    def _judge_anew(self, request: Request, now: Instant, out: list[Command]) -> None:
        state = self._state
        if request.fell_back:
            verdict = again(request, state.fleet, state.rules, holds=state.queue.holds, now=now)
        else:
            verdict = judge(state.rules.without_gone_names(request.ticket), state.rules)
        if isinstance(verdict, Refusal):
            state.queue.leave(request, now)
            self._endings.end(request, verdict.outcome, verdict.reason, now, out, retry_after=verdict.retry_after_ns)
        elif request.hold is None:
            self._admission.move(request, verdict, now)
            state.queue.push(request)
        else:
            held = state.queue.holds.remove(request)
            self._admission.move(request, verdict, now)
            state.queue.hold_anew(request, now, held=held)
            state.queue.push(request)

    # Orders of operators

    def end_orders(self, now: Instant) -> None:
        """Stops following the orders that have ended."""
        if self._orders.end_due(now):
            self._follow_orders(now)

    def _follow_orders(self, now: Instant) -> None:
        """Goes by the orders that are in force from here on, and by the limits of the policy beside them."""
        state, orders = self._state, self._orders
        open_requests = (each.ticket for each in state.requests.by_id.values())
        state.limits.change_rules(orders.throttled(state.rules.policy.tenants), open_requests, now)
        state.fleet.drain(orders.drained())
        state.overload.pin(orders.pinned(), state.fleet, state.queue.floors)
        state.queue.backlog.apart = orders.held()
        # Who was held may go where there is room already.
        state.fleet.changed.update(dict.fromkeys(state.fleet.pools))
