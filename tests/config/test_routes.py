"""Routes of models, and what the gateway reads for them."""

from headgate.config.effective import effective_settings
from headgate.config.settings import Settings
from headgate.config.summary import summary_lines
from headgate.model.routes import ModelRoute, RouteInputs, RouteMatch, Sticky
from headgate.model.tenant import Plan
from tests.config.builders import settings_of

FILE = """
pools:
  a: {engine: llamacpp, in_flight_max: 4, endpoints: ["http://127.0.0.1:8081"], served_model: m}
  b: {engine: llamacpp, in_flight_max: 4, endpoints: ["http://127.0.0.1:8082"], served_model: m}
models:
  spare: {pools: [b]}
  m:
    pools: [a]
    tiers: [{pools: a, name: small}]
    sticky: %s
    routes: %s
tenants:
  demo: {}
anonymous_tenant: demo
"""
CRITERIA = "{tenants: demo, plans: [free, standard], classes: batch, headers: {X-Beta: ['1', 'yes'], x-team: ml}}"


def settings_with(routes: str, sticky: str = "request") -> Settings:
    return settings_of(FILE % (sticky, routes))


def routes_of(routes: str) -> tuple[ModelRoute, ...]:
    return settings_with(routes).policy.models[1].routes


def test_every_criterion_and_weight_is_read() -> None:
    assert routes_of(f"[{{pools: [a, b], weight: 7, name: both, match: {CRITERIA}}}]") == (
        ModelRoute(
            "both",
            ("a", "b"),
            7,
            RouteMatch(
                tenants=("demo",),
                plans=(Plan.FREE, Plan.STANDARD),
                classes=("batch",),
                headers=(("x-beta", ("1", "yes")), ("x-team", ("ml",))),
            ),
        ),
    )


def test_route_is_named_after_its_target() -> None:
    assert routes_of("[a, {pools: [a, b]}, {tier: small}, {model: spare, weight: 0}]") == (
        ModelRoute("a", ("a",)),
        ModelRoute("a+b", ("a", "b")),
        ModelRoute("small", ("a",)),
        ModelRoute("spare", ("b",), 0),
    )


def test_gateway_reads_nothing_for_routes_that_need_nothing() -> None:
    assert settings_with("[a, b]").route_inputs is None
    assert settings_with("[a, b]", "tenant").route_inputs is None
    assert settings_with("[]", "user").route_inputs is None


def test_gateway_reads_the_headers_and_the_sticky_key_of_routes() -> None:
    settings = settings_with(f"[a, {{pools: b, match: {CRITERIA}}}]", "session")

    assert settings.route_inputs == RouteInputs(("x-beta", "x-team"), frozenset({Sticky.SESSION}))


def test_pool_that_only_a_route_uses_causes_no_warning() -> None:
    assert "\n".join(settings_with("[a, b]").warnings) == ""


def test_summary_and_differences_include_routes() -> None:
    settings = settings_with("[a, {pools: b, weight: 5}]", "user")
    shown = {path: each.text for path, each in effective_settings(settings).items() if "models.m.routes[1]" in path}

    assert "model m: served by a, 1 tier, 2 routes by user" in "\n".join(summary_lines(settings))
    assert shown["models.m.routes[1].weight"] == "5"
    assert shown["models.m.routes[1].pools"] == "b"
