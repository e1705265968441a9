"""Conversion of Envoy configurations."""

import json
from typing import Any

import pytest
import yaml

from headgate.model.units import MINUTE, SECOND
from tests.config.convert.builders import converted, error_of, notes_of, settings_of, tree_of

TYPES = "type.googleapis.com/envoy"
CONNECTIONS = f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
UPSTREAM_TLS = f"{TYPES}.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
DOWNSTREAM_TLS = f"{TYPES}.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
ROUTER = {"name": "router", "typed_config": {"@type": f"{TYPES}.extensions.filters.http.router.v3.Router"}}
ROUTE = {"match": {"prefix": "/"}, "route": {"cluster": "vllm"}}


def endpoint(address: str, port: int = 8000, **more: Any) -> dict[str, Any]:
    return {"endpoint": {"address": {"socket_address": {"address": address, "port_value": port}}}, **more}


def cluster(name: str = "vllm", *addresses: str, **settings: Any) -> dict[str, Any]:
    lb_endpoints = [endpoint(each) for each in addresses or ("10.0.0.1", "10.0.0.2")]
    return {
        "name": name,
        "type": "STATIC",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": lb_endpoints}]},
        **settings,
    }


def connections(*routes: dict[str, Any], **settings: Any) -> dict[str, Any]:
    hosts = [{"name": "all", "domains": ["*"], "routes": list(routes) or [ROUTE]}]
    return {
        "@type": CONNECTIONS,
        "stat_prefix": "in",
        "route_config": {"virtual_hosts": hosts},
        "http_filters": [ROUTER],
        **settings,
    }


def listener(manager: dict[str, Any], **chain: Any) -> dict[str, Any]:
    return {"name": "in", "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}], **chain}]}


def bootstrap(*routes: dict[str, Any], clusters: list[Any] | None = None, manager: Any = None, **more: Any) -> str:
    tree = {
        "static_resources": {
            "listeners": [listener(manager or connections(*routes))],
            "clusters": [cluster()] if clusters is None else clusters,
            **more,
        }
    }
    return yaml.safe_dump(tree, sort_keys=False)


def upstream_tls(**context: Any) -> dict[str, Any]:
    return {"name": "tls", "typed_config": {"@type": UPSTREAM_TLS, **context}}


def reasons(text: str, **options: Any) -> list[str]:
    """Notes without file and line, and without the note about the model's name."""
    notes = [note.partition(": ")[2] for note in notes_of(text, **options)]
    return [note for note in notes if "Envoy has no model names" not in note]


def test_cluster_becomes_a_pool_and_a_model() -> None:
    tree = tree_of(bootstrap(), engine="vllm")

    assert tree["pools"] == {
        "vllm": {"engine": "vllm", "in_flight_max": 64, "endpoints": ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]}
    }
    assert tree["models"] == {"vllm": "vllm"}
    assert tree["anonymous_tenant"] == "everyone"
    assert [note.partition(": ")[2] for note in notes_of(bootstrap())] == [
        (
            "...filters[0].typed_config.route_config.virtual_hosts[0].routes[0]: changed: Envoy has no model names, so "
            'the model is called "vllm"; clients must send it, or convert again with --model vllm=NAME'
        )
    ]


@pytest.mark.parametrize("models", [{"": "Qwen/Qwen3-8B"}, {"vllm": "Qwen/Qwen3-8B"}])
def test_model_name_can_be_given(models: dict[str, str]) -> None:
    assert tree_of(bootstrap(), models=models)["models"] == {"Qwen/Qwen3-8B": "vllm"}
    assert notes_of(bootstrap(), models=models) == []


def test_json_and_camel_case_are_read() -> None:
    text = bootstrap(clusters=[cluster(circuit_breakers={"thresholds": [{"max_requests": 20}]})])
    for name in ("static_resources", "load_assignment", "lb_endpoints", "socket_address", "port_value"):
        head, *others = name.split("_")
        text = text.replace(f"{name}:", f"{head}{''.join(map(str.title, others))}:")
    as_json = json.dumps(yaml.safe_load(text))

    assert "portValue" in as_json
    assert tree_of(as_json)["pools"]["vllm"]["in_flight_max"] == 10


def test_model_name_in_a_header_is_used() -> None:
    headers = [
        {"name": "x-gateway-model-name", "string_match": {"exact": "Qwen/Qwen3-8B"}},
        {"name": "x-team", "string_match": {"prefix": "a"}},
    ]
    text = bootstrap({"match": {"prefix": "/", "headers": headers}, "route": {"cluster": "vllm"}})

    assert tree_of(text)["models"] == {"Qwen/Qwen3-8B": "vllm"}
    assert [note.partition(": ")[2] for note in reasons(text)] == [
        "changed: the header x-gateway-model-name selects the route; Headgate reads the model from the body",
        "not carried over: Headgate selects engines by the model in the request",
        "not carried over: has no equivalent",
    ]


def test_weighted_clusters_serve_one_model() -> None:
    weighted = {
        "clusters": [
            {"name": "stable", "weight": 90},
            {"name": "canary", "weight": 10},
            {"name": "off", "weight": 0},
            {"name": "gone", "weight": 1},
        ]
    }
    text = bootstrap(
        {"match": {"prefix": "/v1/"}, "route": {"weighted_clusters": weighted}},
        clusters=[cluster("stable", "10.0.0.1"), cluster("canary", "10.0.0.2"), cluster("off", "10.0.0.3")],
    )

    assert tree_of(text)["models"] == {"stable": ["stable", "canary"]}
    assert {note.partition("over: ")[2] or note.partition("changed: ")[2] for note in reasons(text)} == {
        "its weight is 0",
        "weights have no effect, because Headgate routes by predicted time",
        'the cluster "gone" is not in the source',
        "no route uses it",
    }


def test_lower_priorities_become_a_fallback() -> None:
    assignment = {
        "endpoints": [
            {"locality": {"region": "eu", "zone": "eu-1"}, "lb_endpoints": [endpoint("10.0.0.1")]},
            {"priority": 1, "lb_endpoints": [endpoint("10.0.1.1")]},
            {
                "lb_endpoints": [
                    endpoint("10.0.0.2", health_status="DRAINING"),
                    {"endpoint": {"address": {"pipe": {"path": "/run/engine.sock"}}}},
                    endpoint("2001:db8::1", load_balancing_weight=3),
                ]
            },
        ]
    }
    text = bootstrap(clusters=[cluster(load_assignment=assignment)])
    tree = tree_of(text)

    assert tree["pools"]["vllm"]["endpoints"] == [
        {"url": "http://10.0.0.1:8000", "zone": "eu-1"},
        "http://[2001:db8::1]:8000",
    ]
    assert tree["pools"]["vllm-backup"]["endpoints"] == ["http://10.0.1.1:8000"]
    assert tree["models"] == {"vllm": {"pools": "vllm", "fallbacks": "vllm-backup"}, "vllm-backup": "vllm-backup"}
    assert [note.partition(": ")[2] for note in reasons(text)] == [
        "changed: weights have no effect, because Headgate routes by predicted time",
        'changed: it belongs to the model "vllm-backup", which is a fallback of "vllm"',
        "not carried over: it is unhealthy or draining (health_status); add it to the endpoints when it is back",
        "not carried over: only host names and addresses with a port can be endpoints",
    ]


DNS_CLUSTER = {
    "name": "envoy.cluster.dns",
    "typed_config": {"@type": f"{TYPES}.extensions.clusters.dns.v3.DnsCluster", "dns_refresh_rate": "5s"},
}


@pytest.mark.parametrize("kind", [{"type": "STRICT_DNS"}, {"type": 1}, {"type": None, "cluster_type": DNS_CLUSTER}])
def test_strict_dns_becomes_a_dns_fleet(kind: dict[str, Any]) -> None:
    settings = {"dns_refresh_rate": "7s", "circuit_breakers": {"thresholds": [{"max_requests": 9}]}, **kind}
    text = bootstrap(clusters=[cluster("vllm", "engines.internal", **settings)])
    [pool] = tree_of(text)["pools"].values()

    assert pool["fleet"] == {
        "kind": "dns",
        "name": "engines.internal",
        "port": 8000,
        "scheme": "http",
        "resolve_interval": "7s",
    }
    assert pool["in_flight_max"] == 64
    assert [note.partition("over: ")[2] for note in reasons(text)] == [
        "it limits all endpoints together, and their number is not known; set in_flight_max of each"
    ]


def test_each_of_several_names_becomes_an_endpoint() -> None:
    text = bootstrap(clusters=[cluster("vllm", "gpu-1", "gpu-2", type="STRICT_DNS")])

    assert tree_of(text)["pools"]["vllm"]["endpoints"] == ["http://gpu-1:8000", "http://gpu-2:8000"]
    assert [note.partition("changed: ")[2] for note in reasons(text)] == [
        "it is one endpoint, even if its name has several addresses"
    ] * 2


def test_logical_dns_becomes_an_endpoint() -> None:
    text = bootstrap(clusters=[cluster("vllm", "engines.internal", type="LOGICAL_DNS", dns_lookup_family="V4_ONLY")])

    assert tree_of(text)["pools"]["vllm"]["endpoints"] == ["http://engines.internal:8000"]
    assert reasons(text) == []


def test_limits_failures_and_retries() -> None:
    settings = {
        "connect_timeout": "2s",
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_requests": 41,
                    "max_pending_requests": 5,
                    "retry_budget": {"budget_percent": {"value": 25.0}, "min_retry_concurrency": 4},
                },
                {"priority": "HIGH", "max_requests": 8},
            ]
        },
        "outlier_detection": {
            "consecutive_5xx": 4,
            "base_ejection_time": "20s",
            "max_ejection_time": "120s",
            "enforcing_success_rate": 100,
        },
        "health_checks": [{"timeout": "1s", "interval": "5s"}],
        "least_request_lb_config": {"slow_start_config": {"slow_start_window": "40s"}},
    }
    text = bootstrap(clusters=[cluster(**settings)])
    policy = settings_of(converted(text)).policy

    assert tree_of(text)["pools"]["vllm"]["in_flight_max"] == 20
    assert (policy.health.consecutive_failures_max, policy.health.ejection_ns) == (4, 20 * SECOND)
    assert (policy.health.ejection_ns_max, policy.health.slow_start_ns) == (2 * MINUTE, 40 * SECOND)
    assert tree_of(text)["retry"] == {"pool_budget_percent": 25, "pool_retries_min": 4}
    assert [note.rpartition(": ")[2] for note in reasons(text)] == [
        "connections to engines have a fixed timeout",
        "it limits 2 endpoints together; in_flight_max of each is 20",
        "requests wait in queues; see classes.NAME.queue_length_max",
        "requests of routes with a high priority have the same limits; see classes",
        "endpoints that fail are always ejected, by consecutive failures",
        "Headgate always probes the engines",
    ]


@pytest.mark.parametrize("requests", [100_000, 0])
def test_limits_that_no_engine_has_are_not_carried_over(requests: int) -> None:
    breakers = {"thresholds": [{"max_requests": requests}]}

    assert tree_of(bootstrap(clusters=[cluster(circuit_breakers=breakers)]))["pools"]["vllm"]["in_flight_max"] == 64


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"max_ejection_time": "60s"}, {"base_ejection_time": "120s"}, ("30s", "1m")),
        ({"base_ejection_time": "30s"}, {"base_ejection_time": "20s", "max_ejection_time": "25s"}, ("30s", None)),
        ({"base_ejection_time": "600s"}, {}, ("10m", "10m")),
        ({"base_ejection_time": "60s", "max_ejection_time": "10s"}, {}, ("1m", None)),
    ],
)
def test_ejection_times_of_several_clusters_fit_each_other(
    first: dict[str, str], second: dict[str, str], expected: tuple[str, str | None]
) -> None:
    routes = [{"match": {"prefix": f"/{name}"}, "route": {"cluster": name}} for name in "ab"]
    clusters = [cluster("a", "h1", outlier_detection=first), cluster("b", "h2", outlier_detection=second)]
    health = tree_of(bootstrap(*routes, clusters=clusters))["health"]

    assert (health["ejection_time"], health.get("ejection_time_max")) == expected


def test_timeouts_and_retries_of_routes() -> None:
    policy = {"retry_on": "5xx", "num_retries": 2, "per_try_timeout": "90s"}
    action = {"cluster": "vllm", "timeout": "300s", "idle_timeout": "45s", "retry_policy": policy}
    manager = connections(
        {"match": {"prefix": "/"}, "route": action},
        stream_idle_timeout="300s",
        request_timeout="20s",
        request_headers_timeout="5s",
        common_http_protocol_options={"idle_timeout": "75s", "max_headers_count": 50},
    )
    text = bootstrap(manager=manager)
    settings = settings_of(converted(text))

    assert {each.total_ns_max for each in settings.policy.classes} == {90 * SECOND}
    assert {each.first_token_ns_max for each in settings.policy.classes} == {45 * SECOND}
    assert {each.idle_ns_max for each in settings.policy.classes} == {45 * SECOND}
    assert settings.policy.retry.attempts_max == 3
    assert (settings.limits.body_timeout_ns, settings.limits.header_timeout_ns) == (20 * SECOND, 5 * SECOND)
    assert (settings.limits.keepalive_timeout_ns, settings.limits.header_count_max) == (75 * SECOND, 50)
    assert [note.partition("over: ")[2] for note in reasons(text)] == [
        "Headgate limits each attempt; per_try_timeout becomes attempt_timeout",
        "the scheduler decides by the kind of failure; retry.attempts_max limits all attempts",
        "classes.interactive.first_token_timeout applies to the whole gateway and is already 45s",
        "classes.interactive.stream_idle_timeout applies to the whole gateway and is already 45s",
    ]


def test_timeout_that_is_off_is_reported() -> None:
    text = bootstrap({"match": {"prefix": "/"}, "route": {"cluster": "vllm", "timeout": "0s"}})

    assert "classes" not in tree_of(text)
    assert [note.partition("changed: ")[2] for note in reasons(text)] == [
        "0s turns it off in Envoy; attempt_timeout of the classes applies"
    ]


@pytest.mark.parametrize(
    ("match", "rewrite", "url", "note"),
    [
        ({"prefix": "/v1"}, None, "http://10.0.0.1:8000", ""),
        ({"path": "/v1/chat/completions"}, None, "http://10.0.0.1:8000", ""),
        ({"prefix": "/"}, "/team/", "http://10.0.0.1:8000/team", ""),
        ({"prefix": "/qwen/"}, "/", "http://10.0.0.1:8000", "clients use /v1 instead of /qwen/v1"),
        ({"path_separated_prefix": "/qwen"}, None, "http://10.0.0.1:8000/qwen", "clients use /v1 instead of /qwen/v1"),
        (
            {"prefix": "/v1/"},
            "/",
            "http://10.0.0.1:8000",
            "Envoy removes /v1 from the path; Headgate sends it to the engines",
        ),
    ],
)
def test_paths_become_base_paths(match: dict[str, str], rewrite: str | None, url: str, note: str) -> None:
    action = {"cluster": "vllm"} | ({} if rewrite is None else {"prefix_rewrite": rewrite})
    text = bootstrap({"match": match, "route": action}, clusters=[cluster("vllm", "10.0.0.1")])

    assert tree_of(text)["pools"]["vllm"]["endpoints"] == [url]
    assert [each.partition("changed: ")[2] for each in reasons(text)] == ([note] if note else [])


def test_routes_outside_of_the_api_are_reported() -> None:
    text = bootstrap(
        {"match": {"path": "/metrics"}, "route": {"cluster": "vllm"}},
        {"match": {"prefix": "/old"}, "redirect": {"path_redirect": "/"}},
        {"match": {"prefix": "/by-header"}, "route": {"cluster_header": "x-cluster"}},
        ROUTE,
        {"match": {"prefix": "/other"}, "route": {"cluster": "vllm"}},
    )

    assert tree_of(text)["pools"]["vllm"]["endpoints"] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert [note.rpartition(": ")[2] for note in reasons(text)] == [
        "Headgate has its own pages for health and metrics",
        "it has no cluster",
        "Headgate selects engines by the model in the request",
        "clients use /v1 instead of /other/v1",
        'another route already serves the cluster "vllm" at another path',
    ]


def test_tls_of_engines() -> None:
    context = {
        "sni": "engines",
        "common_tls_context": {
            "tls_certificates": [
                {"certificate_chain": {"filename": "/pki/c.crt"}, "private_key": {"filename": "/pki/c.key"}}
            ],
            "combined_validation_context": {
                "default_validation_context": {},
                "validation_context_sds_secret_config": {"name": "authority"},
            },
        },
    }
    secret = {"name": "authority", "validation_context": {"trusted_ca": {"filename": "/pki/ca.crt"}}}
    text = bootstrap(clusters=[cluster(transport_socket=upstream_tls(**context))], secrets=[secret])
    pool = tree_of(text)["pools"]["vllm"]

    assert pool["tls"] == {
        "ca": "/pki/ca.crt",
        "certificate": "/pki/c.crt",
        "key": "/pki/c.key",
        "server_name": "engines",
    }
    assert pool["endpoints"] == ["https://10.0.0.1:8000", "https://10.0.0.2:8000"]
    assert reasons(text) == []


def test_secrets_in_the_source_are_not_copied() -> None:
    inline = {"trusted_ca": {"inline_string": "very-secret-1"}}
    certificates = [{"certificate_chain": {"filename": "/c"}, "private_key": {"inline_string": "very-secret-2"}}]
    tls = upstream_tls(common_tls_context={"validation_context": inline, "tls_certificates": certificates})
    header = {"key": "Authorization", "value": "Bearer very-secret-3"}
    route = {**ROUTE, "request_headers_to_add": [{"header": header}]}
    result = converted(bootstrap(route, clusters=[cluster(transport_socket=tls)]))

    assert yaml.safe_load(result.text)["pools"]["vllm"]["api_key"] == "${VLLM_API_KEY}"
    assert "very-secret" not in result.text + "".join(map(str, result.notes))
    said = [each.message for each in result.notes]
    assert "write it to a file, and set tls.ca to its path" in said
    assert any(each.startswith("Envoy does not verify the engines' certificates") for each in said)


def test_engines_of_a_fleet_are_verified_by_its_name() -> None:
    tls = upstream_tls(common_tls_context={"validation_context": {"trusted_ca": {"filename": "/pki/ca.crt"}}})
    text = bootstrap(clusters=[cluster("vllm", "engines.internal", type="STRICT_DNS", transport_socket=tls)])
    [pool] = tree_of(text)["pools"].values()

    assert pool["tls"] == {"ca": "/pki/ca.crt", "server_name": "engines.internal"}
    assert pool["fleet"]["scheme"] == "https"


def test_cluster_with_another_transport_is_not_carried_over() -> None:
    quic = {"name": "quic", "typed_config": {"@type": f"{TYPES}.extensions.x.v3.QuicUpstreamTransport"}}
    plain = {"name": "plain", "typed_config": {"@type": f"{TYPES}.extensions.x.v3.RawBuffer"}}
    routes = [{"match": {"prefix": f"/{name}"}, "route": {"cluster": name}} for name in "ab"]
    clusters = [cluster("a", "10.0.0.1", transport_socket=quic), cluster("b", "10.0.0.2", transport_socket=plain)]
    text = bootstrap(*routes, clusters=clusters)

    assert tree_of(text)["models"] == {"b": "b"}
    assert any(each.endswith("Headgate does not support its transport") for each in reasons(text))


@pytest.mark.parametrize("required", [True, False])
def test_certificate_of_a_listener(required: bool) -> None:
    pair = {"certificate_chain": {"filename": "/pki/tls.crt"}, "private_key": {"filename": "/pki/tls.key"}}
    context = {
        "@type": DOWNSTREAM_TLS,
        "require_client_certificate": required,
        "common_tls_context": {
            "tls_certificates": [pair],
            "validation_context": {"trusted_ca": {"filename": "/pki/clients.crt"}},
        },
    }
    front = listener(connections(), transport_socket={"name": "tls", "typed_config": context})
    tree = tree_of(yaml.safe_dump({"static_resources": {"listeners": [front], "clusters": [cluster()]}}))

    expected = {"certificate": "/pki/tls.crt", "key": "/pki/tls.key"}
    assert tree["listen_tls"] == expected | ({"client_ca": "/pki/clients.crt"} if required else {})


def http_filter(kind: str, **config: Any) -> dict[str, Any]:
    return {"name": kind, "typed_config": {"@type": f"{TYPES}.extensions.filters.http.x.v3.{kind}", **config}}


LIMIT = http_filter(
    "LocalRateLimit",
    token_bucket={"max_tokens": 10, "tokens_per_fill": 10, "fill_interval": "30s"},
    filter_enabled={"default_value": {"numerator": 100}},
    filter_enforced={"default_value": {"numerator": 100}},
)


def test_http_filters() -> None:
    filters = [LIMIT, http_filter("Buffer", max_request_bytes=65536), http_filter("Lua"), ROUTER]
    text = bootstrap(manager=connections(http_filters=filters))
    tree = tree_of(text)

    assert tree["tenants"] == {"everyone": {"limits": {"requests_per_minute": 20}}}
    assert tree["limits"] == {"body_bytes_max": "64KiB"}
    assert [note.partition("over: ")[2] for note in reasons(text)] == ["the HTTP filter has no equivalent"]


@pytest.mark.parametrize("kind", ["JwtAuthentication", "ExtAuthz", "RBAC"])
def test_clients_need_a_key_if_envoy_restricts_access(kind: str) -> None:
    text = bootstrap(manager=connections(http_filters=[LIMIT, http_filter(kind), ROUTER]))

    assert "anonymous_tenant" not in tree_of(text)
    assert any("set requests_per_minute: 20 for each tenant" in each for each in reasons(text))


def test_clients_need_a_key_if_a_network_filter_restricts_access() -> None:
    front = listener(connections())
    rbac = {"name": "rbac", "typed_config": {"@type": f"{TYPES}.extensions.filters.network.rbac.v3.RBAC"}}
    front["filter_chains"][0]["filters"].insert(0, rbac)
    text = yaml.safe_dump({"static_resources": {"listeners": [front], "clusters": [cluster()]}})

    assert "anonymous_tenant" not in tree_of(text)


RESOURCES = [
    {
        "@type": f"{TYPES}.config.listener.v3.Listener",
        **listener({"@type": CONNECTIONS, "rds": {"route_config_name": "r"}}),
    },
    {"@type": f"{TYPES}.config.route.v3.RouteConfiguration", "name": "r", "virtual_hosts": [{"routes": [ROUTE]}]},
    {"@type": f"{TYPES}.config.cluster.v3.Cluster", "name": "vllm", "type": "EDS"},
    {
        "@type": f"{TYPES}.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": "vllm",
        "endpoints": [{"lb_endpoints": [endpoint("10.0.0.9")]}],
    },
]


def dump_of(resources: list[dict[str, Any]]) -> dict[str, Any]:
    """The resources as the admin page shows them."""
    front, routes, engines, assignment = resources
    admin = f"{TYPES}.admin.v3"
    return {
        "configs": [
            {"@type": f"{admin}.BootstrapConfigDump", "bootstrap": {"node": {"id": "a"}}},
            {"@type": f"{admin}.ClustersConfigDump", "dynamic_active_clusters": [{"cluster": engines}]},
            {"@type": f"{admin}.ListenersConfigDump", "dynamic_listeners": [{"active_state": {"listener": front}}]},
            {"@type": f"{admin}.RoutesConfigDump", "dynamic_route_configs": [{"route_config": routes}]},
            {"@type": f"{admin}.EndpointsConfigDump", "dynamic_endpoint_configs": [{"endpoint_config": assignment}]},
        ]
    }


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"version_info": "1", "resources": RESOURCES}),
        yaml.safe_dump_all(RESOURCES),
        json.dumps(dump_of(RESOURCES)),
    ],
    ids=["discovery response", "documents", "dump"],
)
def test_resources_of_a_control_plane_are_read(text: str) -> None:
    result = converted(text)

    assert result.source_format == "envoy"
    assert tree_of(text)["pools"]["vllm"]["endpoints"] == ["http://10.0.0.9:8000"]
    assert reasons(text) == []


def test_clusters_without_routes_become_models() -> None:
    text = json.dumps({"static_resources": {"clusters": [cluster("a", "10.0.0.1"), cluster("b", "10.0.0.2")]}})

    assert tree_of(text)["models"] == {"a": "a", "b": "b"}


def test_two_models_of_one_cluster_are_reported() -> None:
    def routed(model: str) -> dict[str, Any]:
        headers = [{"name": "x-ai-eg-model", "string_match": {"exact": model}}]
        return {"match": {"prefix": "/", "headers": headers}, "route": {"cluster": "vllm"}}

    text = bootstrap(routed("base"), routed("adapter"))

    assert tree_of(text)["models"] == {"base": "vllm", "adapter": "vllm"}
    assert tree_of(text)["pools"]["vllm"]["served_model"] == "base"
    assert reasons(text)[-1].endswith('the cluster "vllm" gets requests for "adapter" with the model name "base"')


ALIASES = "  a: &a [x, x]\n" + "".join(
    f"  {name}: &{name} [{', '.join([f'*{before}'] * 6)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("static_resources: [1]", "source:1: static_resources: must be a mapping of settings"),
        ("static_resources: {clusters: {a: b}}", "source:1: static_resources.clusters: must be a list"),
        ("static_resources: {clusters: [1]}", "source:1: static_resources.clusters[0]: must be a mapping of settings"),
        ("static_resources: {clusters: [{}]}", "source:1: static_resources.clusters[0].name: missing; set it, or "),
        (
            "static_resources: {clusters: [{name: [a]}]}",
            "source:1: static_resources.clusters[0].name: must be a single",
        ),
        (
            "static_resources: {clusters: [{name: a}, {name: a}]}",
            "source:1: static_resources.clusters[1].name: is the name of two clusters",
        ),
        (
            bootstrap({"match": {"prefix": "/"}, "route": {"cluster": "vllm", "timeout": "soon"}}),
            "source:20: ...route_config.virtual_hosts[0].routes[0].route.timeout: must be a number of seconds",
        ),
        ("static_resources: " + "{a: " * 200 + "}" * 200, "source: has more than 100 nested levels"),
        ("static_resources:\n" + ALIASES, "source:1: has more than 500000"),
        (
            "static_resources: &a {clusters: *a}",
            "source:1: static_resources.clusters: is an alias of an enclosing value",
        ),
        ("static_resources: {}", "source: has no engine that Headgate can use"),
        (
            bootstrap(clusters=[{"name": "vllm", "type": "EDS"}]),
            "source: has no engine that Headgate can use: its endpoints are not in the source; convert the output of",
        ),
        (
            bootstrap(clusters=[{"name": "vllm", "type": "ORIGINAL_DST"}]),
            "source: has no engine that Headgate can use: the cluster has no list of endpoints",
        ),
    ],
)
def test_invalid_source_is_a_one_line_error(text: str, message: str) -> None:
    said = error_of(text, source_format="envoy")

    assert said.startswith(message)
    assert "\n" not in said
