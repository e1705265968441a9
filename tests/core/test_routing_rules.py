"""Custom routing filters and cost terms, and the cost terms reported in a dispatch."""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch
from headgate.core.events import RequestArrived
from headgate.core.request_state import Request
from headgate.core.routing.cost_terms import COST_TERMS
from headgate.core.routing.endpoints import EndpointRecord, Reservation
from headgate.core.routing.filters import FILTERS
from headgate.core.routing.router import LeastTimeRouter
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint
from headgate.model.policy import HeadroomRules, RoutingRules
from headgate.model.prefix import PREFIX_LENGTHS, pack_hashes
from headgate.model.units import MILLISECOND, SECOND, Duration, RequestId
from testing.builders import a_policy, a_scheduler, an_endpoint, arrived, at, commands_for, completed, first_token

DOCUMENT_TOKENS = 6_000
POLICY = replace(
    a_policy(),
    headroom=HeadroomRules(long_lane_percent=100),
    routing=RoutingRules(cross_zone_penalty_ns=Duration(5 * MILLISECOND)),
)


def asks_about_the_document(request: str, *, zone: str = "") -> RequestArrived:
    hashes = [number + 1 for number, distance in enumerate(PREFIX_LENGTHS) if distance <= DOCUMENT_TOKENS]
    ticket = arrived(request, prompt_bytes=4 * DOCUMENT_TOKENS).ticket
    return RequestArrived(replace(ticket, prefix_hashes=pack_hashes(hashes), zone=zone))


def endpoints(*zones: str) -> list[Endpoint]:
    return [replace(an_endpoint(f"e{number}", places=8), zone=zone) for number, zone in enumerate(zones, start=1)]


def sent(scheduler: Scheduler, event: RequestArrived, second: float = 0) -> Dispatch:
    [command] = commands_for(scheduler, at(second), event)
    assert isinstance(command, Dispatch)
    return command


def with_document_at_e1(router: LeastTimeRouter | None = None) -> Scheduler:
    """Returns a scheduler where e1 has the document cached and is running another request, and e2 is idle."""
    scheduler = a_scheduler(*endpoints("", ""), policy=POLICY, router=router)
    sent(scheduler, asks_about_the_document("first"))
    commands_for(scheduler, at(0), first_token("first"), completed("first"))
    for other in ("one", "two"):
        at_e2 = sent(scheduler, arrived(other)).endpoint_id == "e2"
        commands_for(scheduler, at(0), first_token(other), *([completed(other)] if at_e2 else []))
    return scheduler


# Custom rules


def spares_e1(endpoint: EndpointRecord, _request: Request, _promised: Reservation) -> bool:
    return endpoint.id != "e1"


def power_price(endpoint: EndpointRecord, _request: Request, _cached_tokens: int) -> int:
    return 10 * SECOND if endpoint.id == "e1" else MILLISECOND


def test_custom_filter_excludes_endpoint() -> None:
    router = LeastTimeRouter(filters=(*FILTERS, spares_e1))
    scheduler = a_scheduler(*endpoints("", ""), policy=POLICY, router=router)

    assert [sent(scheduler, arrived(f"r{number}")).endpoint_id for number in range(3)] == ["e2"] * 3


def test_request_waits_if_no_endpoint_passes_custom_filter() -> None:
    router = LeastTimeRouter(filters=(*FILTERS, spares_e1))
    scheduler = a_scheduler(*endpoints(""), policy=POLICY, router=router)

    assert commands_for(scheduler, at(0), arrived("a")) == []


def test_custom_cost_term_changes_the_selection_and_is_reported() -> None:
    router = LeastTimeRouter(terms=(*COST_TERMS, power_price))

    without = sent(with_document_at_e1(), asks_about_the_document("a"), 1)
    with_term = sent(with_document_at_e1(router), asks_about_the_document("a"), 1)

    assert (without.endpoint_id, with_term.endpoint_id) == ("e1", "e2")
    assert ("power_price", MILLISECOND) in with_term.costs
    assert "power_price" not in dict(without.costs)


# Reported cost terms


def test_dispatch_reports_nonzero_cost_terms() -> None:
    scheduler = with_document_at_e1()

    command = sent(scheduler, asks_about_the_document("a"), 1)
    costs = dict(command.costs)

    assert list(costs) == ["interference", "own_prefill", "prefix_hit"]
    assert costs["prefix_hit"] < 0 < costs["own_prefill"]
    assert 0 < costs["own_prefill"] + costs["prefix_hit"] < costs["own_prefill"] // 10


def test_distance_and_pending_prefill_are_separate_cost_terms() -> None:
    scheduler = a_scheduler(*endpoints("far"), policy=POLICY)
    sent(scheduler, arrived("before", prompt_bytes=4_000))

    costs = dict(sent(scheduler, asks_about_the_document("a", zone="near")).costs)

    assert list(costs) == ["pending_prefill", "interference", "own_prefill", "distance"]
    assert costs["distance"] == 5 * MILLISECOND


@pytest.mark.parametrize("percents", [(100, 100), (137, 91), (63, 333)])
def test_cost_terms_add_up_to_load_distance_and_uncached_prompt(percents: tuple[int, int]) -> None:
    scheduler = a_scheduler(*endpoints("far"), policy=POLICY)
    for number in range(3):
        commands_for(scheduler, at(0), arrived(f"r{number}", prompt_bytes=1_001 + number))
    commands_for(scheduler, at(0), asks_about_the_document("waits", zone="near"))
    state = scheduler._state
    [endpoint] = state.fleet.endpoints.values()
    endpoint.speed_estimator.prefill_percent, endpoint.speed_estimator.decode_percent = percents
    request = state.requests.by_id[RequestId("waits")]

    for cached_tokens in (0, 17, request.prompt_tokens - 1):
        rest_ps = endpoint.settings.speed.prefill_ps(request.prompt_tokens, cached=cached_tokens)
        rest_ns = endpoint.speed_estimator.prefill_percent * rest_ps // 100_000
        shares = state.router.cost_breakdown(request, endpoint, cached_tokens)
        assert sum(cost_ns for _, cost_ns in shares) == endpoint.load_ns() + endpoint.distance_ns("near") + rest_ns


def test_costs_are_ignored_when_dispatches_are_compared() -> None:
    command = sent(a_scheduler(), arrived("a"))

    assert command.costs
    assert command == replace(command, costs=())
