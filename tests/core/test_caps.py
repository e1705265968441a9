"""How long may a prompt be, and what does an engine's adapter learn of the caps?"""

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
    completed,
    dispatch,
    end,
    failed,
    policy_changed,
    the_end,
    told,
)

SHORT = Caps(prompt_tokens=1_000)
TRIMMED = Caps(prompt_tokens=1_000, trims_prompt=True)


def with_caps(caps: Caps) -> Policy:
    return a_policy(classes=(a_class("interactive", caps=caps),))


def test_a_dispatch_carries_the_caps_of_its_class() -> None:
    caps = Caps(output_tokens=4_096, n=1)
    scheduler = a_scheduler(policy=with_caps(caps))

    assert scheduler.handle(arrived("r"), at(0)) == [dispatch("r", caps=caps)]


def test_a_prompt_of_as_many_tokens_as_the_class_takes_comes_in() -> None:
    scheduler = a_scheduler(policy=with_caps(SHORT))

    assert scheduler.handle(arrived("r", prompt_bytes=4_003), at(0)) == [dispatch("r", caps=SHORT)]


def test_a_longer_one_is_told_its_length_the_cap_and_the_class() -> None:
    scheduler = a_scheduler(policy=with_caps(SHORT))

    assert scheduler.handle(arrived("r", prompt_bytes=4_004), at(0)) == [
        end(
            "r",
            Outcome.TOO_LARGE,
            ('the prompt has about 1001 tokens, and class "interactive" takes 1000; shorten it or use another class'),
        )
    ]


def test_a_class_that_trims_takes_a_long_prompt_of_which_the_rest_fits() -> None:
    scheduler = a_scheduler(policy=with_caps(TRIMMED))

    arrival = arrived("r", prompt_bytes=400_000, prompt_bytes_kept=4_003)

    assert scheduler.handle(arrival, at(0)) == [dispatch("r", caps=TRIMMED)]


def test_a_class_that_trims_refuses_what_does_not_fit_even_then() -> None:
    scheduler = a_scheduler(policy=with_caps(TRIMMED))

    assert scheduler.handle(arrived("r", prompt_bytes=400_000, prompt_bytes_kept=4_004), at(0)) == [
        end(
            "r",
            Outcome.TOO_LARGE,
            (
                "the prompt has about 100000 tokens, of which 1001 cannot be left out (instructions and the last turn),"
                ' and class "interactive" takes 1000; shorten it or use another class'
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
        ("acme", "m", Outcome.TOO_LARGE),
    ],
)
def test_length_is_looked_at_after_all_else_that_may_be_wrong(tenant: str, model: str, outcome: Outcome) -> None:
    policy = a_policy(
        classes=(a_class("interactive", pools=("p",), caps=SHORT), a_class("batch")),
        tenants=("acme", a_tenant("bolt", classes=("batch",))),
        pools=("p", "q"),
        models=(a_model("m", "p"), a_model("elsewhere", "q")),
    )
    scheduler = a_scheduler(policy=policy)

    request = arrived("r", tenant, model=model, service_class="interactive", prompt_bytes=9_999)
    assert the_end(scheduler.handle(request, at(0))).outcome is outcome


def test_another_class_may_take_what_one_refuses() -> None:
    policy = a_policy(classes=(a_class("interactive", caps=SHORT), a_class("batch", band=1)))
    scheduler = a_scheduler(policy=policy)

    arrival = arrived("r", service_class="batch", prompt_bytes=10**7)

    assert scheduler.handle(arrival, at(0)) == [dispatch("r", service_class="batch")]


def test_what_waits_is_held_to_the_caps_of_a_new_policy_and_what_runs_is_not() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), *[arrived(name, prompt_bytes=9_999) for name in ("runs", "waits")], arrived("short"))

    assert the_end(scheduler.handle(policy_changed(with_caps(SHORT)), at(1))).outcome is Outcome.TOO_LARGE
    assert scheduler.handle(completed("runs"), at(2)) == [
        end("runs", Outcome.COMPLETED, attempts=1),
        dispatch("short", waited=2, caps=SHORT),
    ]


def test_a_retry_is_held_to_the_caps_of_a_new_policy() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("long", prompt_bytes=9_999), arrived("short"))
    told(scheduler, at(1), policy_changed(with_caps(SHORT)))

    refusal = the_end(scheduler.handle(failed("long"), at(2)))

    assert (refusal.outcome, refusal.attempts) == (Outcome.TOO_LARGE, 1)
    assert scheduler.handle(failed("short"), at(3)) == [dispatch("short", "e1", attempt=2, caps=SHORT)]
