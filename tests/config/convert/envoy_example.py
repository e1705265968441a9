"""An Envoy configuration with the settings that the conversion reads."""

from pathlib import Path
from typing import Any

import yaml

from tests.config.convert import test_envoy

FILTERS = f"{test_envoy.TYPES}.extensions.filters.http"
PERCENT = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}


def http_filter(kind: str, **config: Any) -> dict[str, Any]:
    return {"name": kind, "typed_config": {"@type": f"{FILTERS}.{kind}", **config}}


def every_setting(folder: Path) -> dict[str, Any]:
    """A bootstrap file. The folder has the files `tls.crt`, `tls.key` and `ca.crt`."""
    pair = {
        "certificate_chain": {"filename": str(folder / "tls.crt")},
        "private_key": {"filename": str(folder / "tls.key")},
    }
    authority = {"trusted_ca": {"filename": str(folder / "ca.crt")}}
    downstream = {
        "@type": test_envoy.DOWNSTREAM_TLS,
        "require_client_certificate": True,
        "common_tls_context": {"tls_certificates": [pair], "validation_context": authority},
    }
    front = test_envoy.listener(_connections(), transport_socket={"name": "tls", "typed_config": downstream})
    front["address"] = {"socket_address": {"address": "127.0.0.1", "port_value": 8443}}
    resources = {
        "listeners": [front],
        "clusters": [_main(pair), *_named()],
        "secrets": [{"name": "authority", "validation_context": authority}],
    }
    # Envoy rejects settings without a value.
    return yaml.safe_load(yaml.safe_dump({"static_resources": resources}))


def _connections() -> dict[str, Any]:
    weighted = {"clusters": [{"name": "vllm", "weight": 1}, {"name": "other", "weight": 2}]}
    policy = {"retry_on": "5xx", "num_retries": 2, "per_try_timeout": "10s", "per_try_idle_timeout": "5s"}
    first = {
        "match": {"prefix": "/", "headers": [{"name": "x-model", "string_match": {"exact": "m"}}]},
        "route": {"weighted_clusters": weighted, "timeout": "30s", "idle_timeout": "20s", "retry_policy": policy},
        "request_headers_to_add": [
            {"header": {"key": "Authorization", "value": "Bearer k"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        ],
    }
    second = {"match": {"path_separated_prefix": "/a/v1"}, "route": {"cluster": "lone", "prefix_rewrite": "/v1"}}
    return test_envoy.connections(
        first,
        second,
        {"match": {"path": "/health"}, "direct_response": {"status": 200}},
        stream_idle_timeout="10s",
        request_timeout="10s",
        request_headers_timeout="5s",
        max_request_headers_kb=64,
        common_http_protocol_options={"idle_timeout": "10s", "max_headers_count": 9},
        http_filters=[
            http_filter(
                "local_ratelimit.v3.LocalRateLimit",
                stat_prefix="rate",
                token_bucket={"max_tokens": 10, "tokens_per_fill": 10, "fill_interval": "30s"},
                filter_enabled=PERCENT,
                filter_enforced=PERCENT,
            ),
            http_filter("buffer.v3.Buffer", max_request_bytes=4096),
            http_filter("rbac.v3.RBAC"),
            http_filter("jwt_authn.v3.JwtAuthentication"),
            test_envoy.ROUTER,
        ],
    )


def _main(pair: dict[str, Any]) -> dict[str, Any]:
    budget = {"budget_percent": {"value": 5}, "min_retry_concurrency": 3}
    thresholds = [{"max_requests": 9, "max_pending_requests": 3, "track_remaining": True, "retry_budget": budget}]
    combined = {
        "default_validation_context": {},
        "validation_context_sds_secret_config": {"name": "authority"},
    }
    return test_envoy.cluster(
        connect_timeout="2s",
        lb_policy="LEAST_REQUEST",
        circuit_breakers={"thresholds": thresholds, "per_host_thresholds": [{"max_connections": 4}]},
        outlier_detection={
            "consecutive_5xx": 4,
            "consecutive_gateway_failure": 3,
            "interval": "1s",
            "base_ejection_time": "5s",
            "max_ejection_time": "50s",
            "max_ejection_percent": 50,
            "enforcing_success_rate": 0,
        },
        health_checks=[
            {
                "timeout": "1s",
                "interval": "5s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }
        ],
        least_request_lb_config={"slow_start_config": {"slow_start_window": "40s"}},
        transport_socket=test_envoy.upstream_tls(
            sni="name",
            common_tls_context={
                "tls_certificates": [pair],
                "combined_validation_context": combined,
                "alpn_protocols": ["http/1.1"],
            },
        ),
    )


def _named() -> list[dict[str, Any]]:
    """Clusters with DNS names, of the older and the newer kind."""
    newer = test_envoy.cluster("lone", "engines.internal", cluster_type=test_envoy.DNS_CLUSTER)
    newer.pop("type")
    older = {"type": "STRICT_DNS", "dns_refresh_rate": "5s", "respect_dns_ttl": True, "dns_lookup_family": "V4_ONLY"}
    return [test_envoy.cluster("other", "engines.internal", **older), newer]
