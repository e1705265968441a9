"""Tests for caps: prompt limits, trimming and the caps passed to engine adapters."""

import pytest

from headgate.model.caps import Caps
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from testing.builders import (
    a_class,
    a_model,
    a_policy,
    a_scheduler,
    a_tenant,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    dispatch,
    end,
    failed,
    only_end,
    policy_changed,
)

SHORT = Caps(prompt_tokens=1_000)
TRIMMED = Caps(prompt_tokens=1_000, trim_prompt=True)


def with_caps(caps: Caps) -> Policy:
    return a_policy(classes=(a_class("interactive", caps=caps),))


def test_dispatch_carries_the_caps_of_its_class() -> None:
    caps = Caps(output_tokens=4_096, n=1)
    scheduler = a_scheduler(policy=with_caps(caps))

    assert scheduler.handle(arrived("r"), at(0)) == [dispatch("r", caps=caps)]


def test_prompt_at_the_token_limit_is_admitted() -> None:
    scheduler = a_scheduler(policy=with_caps(SHORT))

    assert scheduler.handle(arrived("r", prompt_bytes=4_003), at(0)) == [dispatch("r", caps=SHORT)]


def test_prompt_above_the_token_limit_is_rejected_with_length_and_limit() -> None:
    scheduler = a_scheduler(policy=with_caps(SHORT))

    assert scheduler.handle(arrived("r", prompt_bytes=4_004), at(0)) == [
        end(
            "r",
            Outcome.REQUEST_TOO_LARGE,
            (
                'the prompt has about 1001 tokens, but class "interactive" allows at most 1000; '
                "shorten the prompt or use another class"
            ),
        )
    ]


def test_trimming_class_admits_a_long_prompt_if_the_untrimmable_part_fits() -> None:
    scheduler = a_scheduler(policy=with_caps(TRIMMED))

    arrival = arrived("r", prompt_bytes=400_000, prompt_bytes_kept=4_003)

    assert scheduler.handle(arrival, at(0)) == [dispatch("r", caps=TRIMMED)]


def test_trimming_class_rejects_a_prompt_if_the_untrimmable_part_does_not_fit() -> None:
    scheduler = a_scheduler(policy=with_caps(TRIMMED))

    assert scheduler.handle(arrived("r", prompt_bytes=400_000, prompt_bytes_kept=4_004), at(0)) == [
        end(
            "r",
            Outcome.REQUEST_TOO_LARGE,
            (
                "the prompt has about 100000 tokens, of which 1001 cannot be trimmed (instructions and the last turn),"
                ' but class "interactive" allows at most 1000; shorten the prompt or use another class'
            ),
        )
    ]


@pytest.mark.parametrize(
    ("tenant", "model", "outcome"),
    [
        ("nobody", "m", Outcome.UNAUTHORIZED),
        ("acme", "gpt", Outcome.MODEL_NOT_FOUND),
        ("bolt", "m", Outcome.FORBIDDEN),
        ("acme", "elsewhere", Outcome.FORBIDDEN),
        ("acme", "m", Outcome.REQUEST_TOO_LARGE),
    ],
)
def test_prompt_length_is_checked_after_all_other_checks(tenant: str, model: str, outcome: Outcome) -> None:
    policy = a_policy(
        classes=(a_class("interactive", pools=("p",), caps=SHORT), a_class("batch")),
        tenants=("acme", a_tenant("bolt", classes=("batch",))),
        pools=("p", "q"),
        models=(a_model("m", "p"), a_model("elsewhere", "q")),
    )
    scheduler = a_scheduler(policy=policy)

    request = arrived("r", tenant, model=model, service_class="interactive", prompt_bytes=9_999)
    assert only_end(scheduler.handle(request, at(0))).outcome is outcome


def test_prompt_above_the_limit_in_one_class_is_admitted_in_another() -> None:
    policy = a_policy(classes=(a_class("interactive", caps=SHORT), a_class("batch", band=1)))
    scheduler = a_scheduler(policy=policy)

    arrival = arrived("r", service_class="batch", prompt_bytes=10**7)

    assert scheduler.handle(arrival, at(0)) == [dispatch("r", service_class="batch")]


def test_policy_change_applies_new_caps_to_queued_but_not_to_running_requests() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), *[arrived(name, prompt_bytes=9_999) for name in ("runs", "waits")], arrived("short"))

    assert only_end(scheduler.handle(policy_changed(with_caps(SHORT)), at(1))).outcome is Outcome.REQUEST_TOO_LARGE
    assert scheduler.handle(completed("runs"), at(2)) == [
        end("runs", Outcome.COMPLETED, attempts=1),
        dispatch("short", waited=2, caps=SHORT),
    ]


def test_retry_is_checked_against_the_caps_of_a_new_policy() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("long", prompt_bytes=9_999), arrived("short"))
    commands_for(scheduler, at(1), policy_changed(with_caps(SHORT)))

    refusal = only_end(scheduler.handle(failed("long"), at(2)))

    assert (refusal.outcome, refusal.attempts) == (Outcome.REQUEST_TOO_LARGE, 1)
    assert scheduler.handle(failed("short"), at(3)) == [dispatch("short", "e1", attempt=2, caps=SHORT)]
