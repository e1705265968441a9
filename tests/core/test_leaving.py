"""Charges of a tenant whose caller disconnects or whose deadline passes."""

from dataclasses import replace

import pytest

from headgate.core.commands import End
from headgate.core.events import AttemptProgress, AttemptReported, Event, Progressed, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.caps import Caps
from headgate.model.money import NANO_USD_PER_USD, PAYERS, Cause, NanoUsd, Payer, Price
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
    client_left,
    completed,
    fell_silent,
    first_token,
    grace_over,
    joined,
    lasting,
    told,
)

DOLLAR = NanoUsd(NANO_USD_PER_USD)
SPEED = EngineSpeed()


def by_tokens() -> Policy:
    """A price of one dollar per million tokens."""
    price = Price(input_tokens=DOLLAR, cached_tokens=DOLLAR, output_tokens=DOLLAR)
    return a_policy(pools=(replace(a_pool(), prices=(price,)),))


def progress(request: str, tokens: int) -> Progressed:
    return Progressed((AttemptProgress(RequestId(request), 1, tokens),))


def ended(scheduler: Scheduler, event: Event, moment: float) -> End:
    [end] = [each for each in scheduler.handle(event, at(moment)) if isinstance(each, End)]
    return end


def spent(end: End) -> int:
    return sum(each.input + each.output for each in end.bills if PAYERS[each.cause] is Payer.TENANT)


@pytest.mark.parametrize("how", ["left", "late"])
def test_delivered_tokens_are_billed_after_a_disconnect_or_an_expired_deadline(how: str) -> None:
    scheduler = a_scheduler(policy=by_tokens())
    within = 2 if how == "late" else None
    told(scheduler, at(0), arrived("r", prompt_bytes=4_000, complete_within=within), first_token("r"))
    told(scheduler, at(1), progress("r", 300))

    end = ended(scheduler, client_left("r") if how == "left" else TimerFired(), 2)

    assert [each.cause for each in end.bills] == [Cause.CLIENT_LEFT if how == "left" else Cause.EXPIRED]
    assert spent(end) == 1_300 * 1_000
    assert not told(scheduler, at(3), aborted("r"))


@pytest.mark.parametrize("how", ["left", "late"])
def test_started_prompt_is_billed_before_its_first_token(how: str) -> None:
    scheduler = a_scheduler(policy=by_tokens())
    told(scheduler, at(0), arrived("r", prompt_bytes=4_000, complete_within=2 if how == "late" else None))

    end = ended(scheduler, client_left("r") if how == "left" else TimerFired(), 2)

    assert spent(end) == 1_000 * 1_000


def test_request_withdrawn_from_the_queue_is_not_billed() -> None:
    scheduler = a_scheduler(an_endpoint(places=1), policy=by_tokens())
    told(scheduler, at(0), arrived("r"), arrived("waits"))

    assert ended(scheduler, client_left("waits"), 2).bills == ()


def teach(scheduler: Scheduler, tokens: int, *, prompt_bytes: int = 64_000, tenant: str = "acme") -> None:
    """Lets an engine report `tokens` prompt tokens for 32 requests of a tenant."""
    usage = Usage(tokens, 1, 0, UsageSource.ENGINE)
    for number in range(32):
        name = f"{tenant} teaches {number}"
        told(scheduler, at(0), arrived(name, tenant, prompt_bytes=prompt_bytes), replace(completed(name), usage=usage))


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("how", ["left", "late"])
def test_tenant_cannot_lower_the_rate_charged_for_abandoned_prompts(how: str, begins: bool) -> None:
    """The tenant sends runs of whitespace, with 64 bytes per token, and then abandons prompts with a token per byte."""
    scheduler = a_scheduler(policy=by_tokens())
    teach(scheduler, 1_000)
    within = 2 if how == "late" else None
    told(scheduler, at(0), arrived("r", prompt_bytes=64_000, complete_within=within))
    if begins:
        told(scheduler, at(1), first_token("r"))

    end = ended(scheduler, client_left("r") if how == "left" else TimerFired(), 2)

    assert 0.95 * 16_000 < spent(end) / 1_000 <= 16_000


def test_abandoned_prompts_of_a_tenant_with_many_tokens_per_byte_are_charged_at_its_own_rate() -> None:
    scheduler = a_scheduler(policy=by_tokens())
    teach(scheduler, 48_000)
    told(scheduler, at(0), arrived("r", prompt_bytes=64_000))

    assert spent(ended(scheduler, client_left("r"), 2)) / 1_000 == pytest.approx(48_000, rel=0.02)


def test_cached_part_of_an_abandoned_prompt_grows_with_the_prompt() -> None:
    scheduler = a_scheduler()
    teach(scheduler, 1_000)
    told(scheduler, at(0), arrived("r", prompt_bytes=64_000))
    attempt = scheduler._state.attempts.by_number[RequestId("r"), 1]
    attempt.reservation = attempt.reservation._replace(cached_tokens=attempt.reservation.prompt_tokens // 2)

    prompt, cached, _ = used_of(scheduler, client_left("r"), aborted("r"))
    assert prompt > 15_000
    assert cached == pytest.approx(prompt / 2, rel=0.01)


def used_of(scheduler: Scheduler, *events: Event) -> tuple[int, int, int]:
    """Usage for which the only attempt is charged in the end."""
    attempt = scheduler._state.attempts.by_number[RequestId("r"), 1]
    told(scheduler, at(10), *events)
    return attempt.used


def test_disconnect_keeps_the_fairness_charge() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", prompt_bytes=4_000))

    assert used_of(scheduler, client_left("r"), aborted("r")) == (1_000, 0, 0)


def test_tokens_reported_after_the_end_count_once() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", prompt_bytes=4_000), first_token("r"), progress("r", 20))

    assert used_of(scheduler, client_left("r"), progress("r", 5), aborted("r")) == (1_000, 0, 25)


@pytest.mark.parametrize("how", [grace_over("r"), fell_silent("r")])
def test_platform_faults_are_not_charged(how: Event) -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", prompt_bytes=4_000))

    assert used_of(scheduler, how, aborted("r")) == (0, 0, 0)


def test_unstreamed_responses_are_charged_for_the_estimated_tokens() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", stream=False, prompt_bytes=40))
    steps = lasting(2) * 1_000 // SPEED.decode_ps(1, kv_tokens=10)
    told(scheduler, at(2), client_left("r"))

    prompt, cached, output = used_of(scheduler, aborted("r"))

    assert (prompt, cached) == (10, 0)
    assert 0 < output == steps < 400


@pytest.mark.parametrize(("asked", "most"), [(50, 50), (None, 400)])
def test_charge_does_not_exceed_the_maximum_length_of_a_response(asked: int | None, most: int) -> None:
    scheduler = a_scheduler()
    event = arrived("r", stream=False, prompt_bytes=40)
    told(scheduler, at(0), replace(event, ticket=replace(event.ticket, output_tokens_max=asked)))
    told(scheduler, at(9), client_left("r"))

    assert used_of(scheduler, aborted("r")) == (10, 0, most)


def test_embeddings_are_charged_for_no_output_tokens() -> None:
    scheduler = a_scheduler()
    event = arrived("r", stream=False, prompt_bytes=40)
    told(scheduler, at(0), replace(event, ticket=replace(event.ticket, api=Api.EMBEDDINGS)))
    told(scheduler, at(9), client_left("r"))

    assert used_of(scheduler, aborted("r")) == (10, 0, 0)


def test_attempt_that_outlives_its_request_keeps_its_charge_under_a_successor() -> None:
    scheduler = a_scheduler()
    ticket = arrived("r", prompt_bytes=4_000).ticket
    report = AttemptReported(
        ticket,
        1,
        EndpointId("e1"),
        lasting(1),
        first_token=False,
        tokens=0,
        waited_ns=lasting(0),
        pool=PoolName("p"),
        service_class=ClassName("interactive"),
        caps=Caps(),
        over=True,
    )
    told(scheduler, at(1), joined("e1"), report)

    assert used_of(scheduler, aborted("r")) == (1_000, 0, 0)
