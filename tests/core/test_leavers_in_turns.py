"""A tenant whose callers disconnect early gets no more than its share of engine time."""

from dataclasses import replace
from heapq import heappop, heappush

import pytest

from headgate.core.commands import Abort, Command, Dispatch
from headgate.core.events import AttemptEnded, AttemptEnding, Event, RequestArrived
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, RequestId
from headgate.model.usage import Usage, UsageSource
from testing.builders import a_class, a_policy, a_scheduler, aborted, an_endpoint, arrived, at, client_disconnected

TOKENS = {"victim": 100, "attacker": 700}
TOKEN_NS = 10 * MILLISECOND
"""Duration of a decode step at the default engine speed."""


def share_of_victim(leaves_after: Duration | None) -> float:
    """Returns the victim's share of slot time while two tenants compete for four slots for five minutes."""
    policy = a_policy(classes=(replace(a_class(), queue_wait_ns_max=600 * SECOND),), tenants=("victim", "attacker"))
    scheduler = a_scheduler(an_endpoint(places=4), policy=policy)
    due: list[tuple[Instant, int, Event]] = []
    held: dict[str, int] = {"victim": 0, "attacker": 0}
    began: dict[str, Instant] = {}
    count = 0

    def plan(moment: int, event: Event) -> None:
        nonlocal count
        count += 1
        heappush(due, (Instant(moment), count, event))

    def ask(tenant: str, now: Instant) -> None:
        event = arrived(f"{tenant}-{count}", tenant, stream=False, prompt_bytes=40)
        plan(now, RequestArrived(replace(event.ticket, output_tokens_max=TOKENS[tenant])))

    def carry_out(command: Command, now: Instant) -> None:
        name = getattr(command, "request_id", "")
        tenant = name.partition("-")[0]
        if isinstance(command, Dispatch):
            began[name] = now
            took = TOKENS[tenant] * TOKEN_NS
            if tenant == "attacker" and leaves_after is not None and leaves_after < took:
                plan(now + leaves_after, client_disconnected(name))
            else:
                usage = Usage(10, TOKENS[tenant], 0, UsageSource.ENGINE)
                plan(now + took, AttemptEnded(RequestId(name), 1, AttemptEnding.COMPLETED, usage=usage))
        elif isinstance(command, Abort):
            plan(now, aborted(name))

    for _ in range(24):
        ask("victim", at(0))
        ask("attacker", at(0))
    while (moment := heappop(due))[0] < at(300):
        now, _, event = moment
        if isinstance(event, AttemptEnded):
            tenant = event.request_id.partition("-")[0]
            held[tenant] += now - began[event.request_id]
            ask(tenant, now)
        for command in scheduler.handle(event, now):
            carry_out(command, now)
    return held["victim"] / sum(held.values())


@pytest.mark.parametrize("leaves_after", [None, Duration(6 * SECOND), Duration(SECOND)])
def test_early_disconnects_do_not_increase_the_tenants_share(leaves_after: Duration | None) -> None:
    assert 0.42 < share_of_victim(leaves_after) < 0.6
