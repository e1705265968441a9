"""Charges for requests whose caller disconnects or whose deadline passes."""

from dataclasses import replace

import pytest

from headgate.core.commands import End
from headgate.core.events import AttemptProgress, AttemptReported, AttemptsProgressed, Event, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.caps import Caps
from headgate.model.money import NANO_USD_PER_USD, PAYER_BY_CAUSE, BillCause, NanoUsd, Payer, Price
from headgate.model.policy import Policy
from headgate.model.speed import EngineSpeed
from headgate.model.ticket import Api
from headgate.model.units import ClassName, EndpointId, PoolName, RequestId
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    a_policy,
    a_pool,
    a_scheduler,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    duration,
    first_token,
    grace_over,
    joined,
    timed_out,
)

DOLLAR = NanoUsd(NANO_USD_PER_USD)
SPEED = EngineSpeed()


def by_tokens() -> Policy:
    """Returns a policy with a price of one dollar per million tokens."""
    price = Price(input_per_1m_tokens=DOLLAR, cached_per_1m_tokens=DOLLAR, output_per_1m_tokens=DOLLAR)
    return a_policy(pools=(replace(a_pool(), prices=(price,)),))


def progress(request: str, tokens: int) -> AttemptsProgressed:
    return AttemptsProgressed((AttemptProgress(RequestId(request), 1, tokens),))


def ended(scheduler: Scheduler, event: Event, moment: float) -> End:
    [end] = [each for each in scheduler.handle(event, at(moment)) if isinstance(each, End)]
    return end


def spent(end: End) -> int:
    return sum(
        each.input_nano_usd + each.output_nano_usd for each in end.bills if PAYER_BY_CAUSE[each.cause] is Payer.TENANT
    )


@pytest.mark.parametrize("how", ["left", "late"])
def test_delivered_tokens_are_billed_after_disconnect_or_missed_deadline(how: str) -> None:
    scheduler = a_scheduler(policy=by_tokens())
    within = 2 if how == "late" else None
    commands_for(scheduler, at(0), arrived("r", prompt_bytes=4_000, complete_within=within), first_token("r"))
    commands_for(scheduler, at(1), progress("r", 300))

    end = ended(scheduler, client_disconnected("r") if how == "left" else TimerFired(), 2)

    assert [each.cause for each in end.bills] == [
        BillCause.CLIENT_DISCONNECTED if how == "left" else BillCause.DEADLINE_EXCEEDED
    ]
    assert spent(end) == 1_300 * 1_000
    assert not commands_for(scheduler, at(3), aborted("r"))


@pytest.mark.parametrize("how", ["left", "late"])
def test_started_prompt_is_billed_before_its_first_token(how: str) -> None:
    scheduler = a_scheduler(policy=by_tokens())
    commands_for(scheduler, at(0), arrived("r", prompt_bytes=4_000, complete_within=2 if how == "late" else None))

    end = ended(scheduler, client_disconnected("r") if how == "left" else TimerFired(), 2)

    assert spent(end) == 1_000 * 1_000


def test_request_withdrawn_from_queue_is_not_billed() -> None:
    scheduler = a_scheduler(an_endpoint(places=1), policy=by_tokens())
    commands_for(scheduler, at(0), arrived("r"), arrived("waits"))

    assert ended(scheduler, client_disconnected("waits"), 2).bills == ()


def teach(scheduler: Scheduler, tokens: int, *, prompt_bytes: int = 64_000, tenant: str = "acme") -> None:
    """Completes 32 requests from a tenant; for each, the engine reports `tokens` prompt tokens."""
    usage = Usage(tokens, 1, 0, UsageSource.ENGINE)
    for number in range(32):
        name = f"{tenant} teaches {number}"
        commands_for(
            scheduler, at(0), arrived(name, tenant, prompt_bytes=prompt_bytes), replace(completed(name), usage=usage)
        )


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("how", ["left", "late"])
def test_tenant_cannot_lower_token_rate_charged_for_abandoned_prompts(how: str, begins: bool) -> None:
    """The tenant first sends whitespace at 64 bytes per token and then abandons prompts with one byte per token."""
    scheduler = a_scheduler(policy=by_tokens())
    teach(scheduler, 1_000)
    within = 2 if how == "late" else None
    commands_for(scheduler, at(0), arrived("r", prompt_bytes=64_000, complete_within=within))
    if begins:
        commands_for(scheduler, at(1), first_token("r"))

    end = ended(scheduler, client_disconnected("r") if how == "left" else TimerFired(), 2)

    assert 0.95 * 16_000 < spent(end) / 1_000 <= 16_000


def test_abandoned_prompts_with_many_tokens_per_byte_are_charged_at_the_tenants_rate() -> None:
    scheduler = a_scheduler(policy=by_tokens())
    teach(scheduler, 48_000)
    commands_for(scheduler, at(0), arrived("r", prompt_bytes=64_000))

    assert spent(ended(scheduler, client_disconnected("r"), 2)) / 1_000 == pytest.approx(48_000, rel=0.02)


def test_cached_part_of_abandoned_prompt_scales_with_charged_prompt() -> None:
    scheduler = a_scheduler()
    teach(scheduler, 1_000)
    commands_for(scheduler, at(0), arrived("r", prompt_bytes=64_000))
    attempt = scheduler._state.attempts.by_number[RequestId("r"), 1]
    attempt.reservation.cached_tokens = attempt.reservation.prompt_tokens // 2

    prompt, cached, _ = used_of(scheduler, client_disconnected("r"), aborted("r"))
    assert prompt > 15_000
    assert cached == pytest.approx(prompt / 2, rel=0.01)


def used_of(scheduler: Scheduler, *events: Event) -> tuple[int, int, int]:
    """Returns the usage charged for the only attempt after these events."""
    attempt = scheduler._state.attempts.by_number[RequestId("r"), 1]
    commands_for(scheduler, at(10), *events)
    return attempt.tokens_used


def test_disconnect_keeps_fairness_charge() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", prompt_bytes=4_000))

    assert used_of(scheduler, client_disconnected("r"), aborted("r")) == (1_000, 0, 0)


def test_tokens_reported_after_disconnect_are_counted_once() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", prompt_bytes=4_000), first_token("r"), progress("r", 20))

    assert used_of(scheduler, client_disconnected("r"), progress("r", 5), aborted("r")) == (1_000, 0, 25)


@pytest.mark.parametrize("how", [grace_over("r"), timed_out("r")])
def test_platform_faults_are_not_charged(how: Event) -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", prompt_bytes=4_000))

    assert used_of(scheduler, how, aborted("r")) == (0, 0, 0)


def test_non_streaming_response_is_charged_for_estimated_tokens() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", stream=False, prompt_bytes=40))
    steps = duration(2) * 1_000 // SPEED.decode_ps(1, kv_tokens=10)
    commands_for(scheduler, at(2), client_disconnected("r"))

    prompt, cached, output = used_of(scheduler, aborted("r"))

    assert (prompt, cached) == (10, 0)
    assert 0 < output == steps < 400


@pytest.mark.parametrize(("asked", "most"), [(50, 50), (None, 400)])
def test_charge_does_not_exceed_maximum_response_length(asked: int | None, most: int) -> None:
    scheduler = a_scheduler()
    event = arrived("r", stream=False, prompt_bytes=40)
    commands_for(scheduler, at(0), replace(event, ticket=replace(event.ticket, output_tokens_max=asked)))
    commands_for(scheduler, at(9), client_disconnected("r"))

    assert used_of(scheduler, aborted("r")) == (10, 0, most)


def test_embeddings_are_not_charged_for_output_tokens() -> None:
    scheduler = a_scheduler()
    event = arrived("r", stream=False, prompt_bytes=40)
    commands_for(scheduler, at(0), replace(event, ticket=replace(event.ticket, api=Api.EMBEDDINGS)))
    commands_for(scheduler, at(9), client_disconnected("r"))

    assert used_of(scheduler, aborted("r")) == (10, 0, 0)


def test_attempt_outliving_its_request_keeps_its_charge_after_takeover() -> None:
    scheduler = a_scheduler()
    ticket = arrived("r", prompt_bytes=4_000).ticket
    report = AttemptReported(
        ticket,
        1,
        EndpointId("e1"),
        duration(1),
        first_token=False,
        tokens=0,
        waited_ns=duration(0),
        pool=PoolName("p"),
        service_class=ClassName("interactive"),
        caps=Caps(),
        request_ended=True,
    )
    commands_for(scheduler, at(1), joined("e1"), report)

    assert used_of(scheduler, aborted("r")) == (1_000, 0, 0)
