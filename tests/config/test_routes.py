"""Routes of models, and what the gateway reads for them."""

from headgate.config.effective import effective_settings
from headgate.config.settings import Settings
from headgate.config.summary import summary_lines
from headgate.model.routes import ModelRoute, RouteInputs, RouteMatch, RouteMirror, Sticky
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


# Mirrors


def mirrors_of(*mirrors: str) -> list[RouteMirror | None]:
    text = ", ".join(f"{{pools: a, name: r{number}, mirror: {each}}}" for number, each in enumerate(mirrors))
    return [each.mirror for each in routes_of(f"[{text}]")]


def test_mirror_has_the_targets_of_a_route_and_a_share() -> None:
    assert mirrors_of("b", "{pools: [b], percent: 10}", "{tier: small, percent: 0}", "{model: spare}") == [
        RouteMirror(("b",)),
        RouteMirror(("b",), 100_000),
        RouteMirror(("a",), 0),
        RouteMirror(("b",)),
    ]


def test_share_of_a_mirror_may_be_a_fraction() -> None:
    assert mirrors_of(
        "{pools: b, fraction: {numerator: 5, denominator: 1000}}", "{pools: b, fraction: {numerator: 5}}"
    ) == [RouteMirror(("b",), 5_000), RouteMirror(("b",), 50_000)]


def test_gateway_looks_for_mirrors_only_in_models_that_have_them() -> None:
    settings = settings_with("[{pools: a, mirror: b}]")

    assert settings_with("[a, b]").mirrored_models is None
    assert list(settings.mirrored_models or ()) == ["m"]


def test_summary_and_differences_include_mirrors() -> None:
    settings = settings_with("[{pools: a, mirror: {pools: b, percent: 10}}]")
    shown = {path: each.text for path, each in effective_settings(settings).items() if "mirror" in path}

    assert "1 route by request, 10 % of route a copied to b" in "\n".join(summary_lines(settings))
    assert shown["models.m.routes[0].mirror.percent"] == "10"


def test_pool_that_only_a_mirror_uses_causes_no_warning() -> None:
    assert "\n".join(settings_with("[{pools: a, mirror: b}]").warnings) == ""
