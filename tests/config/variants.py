"""Files that configure the same as the small file, and files that do not."""

from tests.config.builders import SMALL, small_with

SECRET = "key_secret: ${S}"
_DIGEST = "hmac-sha256:" + "ab" * 32

EQUIVALENT = [
    "# a comment\n" + SMALL,
    small_with("drain_grace: 30s", "retry: {attempts_max: 3}", "health:"),
    small_with("classes: {interactive: {}, long: {}, batch: {}}"),
    small_with("degradation: {enabled: true}", "shedding: {}", "fairness_depth: 1"),
    SMALL.replace("demo: {}", "demo: {weight: 100, plan: standard, limits: {}}"),
    small_with("classes: {interactive: {}, long: {caps: {n: 8, output_tokens: unlimited}}, batch: {}}"),
    SMALL.replace("8081", "8081/").replace("smollm2: small", "smollm2: {pools: [small]}"),
]

DIFFERENT = [
    small_with("drain_grace: 31s"),
    small_with("listen: 127.0.0.1:8082"),
    small_with("limits: {requests_open_max: 1}"),
    small_with("limits: {keepalive_timeout: 76s}"),
    small_with("classes: {interactive: {}, long: {caps: {n: 7}}, batch: {}}"),
    small_with("classes: {interactive: {}, long: {caps: {reasoning_effort: none}}, batch: {}}"),
    SMALL.replace("engine: llamacpp", "engine: llamacpp, forward_priority: true"),
    SMALL.replace("engine: llamacpp", "engine: llamacpp, always_stream_upstream: true"),
    small_with("retry: {tenant_budget_percent: 11}"),
    small_with("error_docs_url: https://docs.example.com"),
    small_with("quote_engine_errors: true"),
    small_with("classes: {long: {}, interactive: {}, batch: {}}"),
    small_with(SECRET),
    SMALL.replace("in_flight_max: 4", "in_flight_max: 5"),
    SMALL.replace("in_flight_max: 4", "in_flight_max: 4, speed: tiny"),
    SMALL.replace("in_flight_max: 4", "in_flight_max: 4, kv_tokens: 1000"),
    SMALL.replace('"http://127.0.0.1:8081"', "{url: 'http://127.0.0.1:8081', device: d}"),
    SMALL.replace("demo: {}", "demo: {weight: 99}"),
    SMALL.replace("demo: {}", "demo: {plan: free}"),
    SMALL.replace("demo: {}", "demo: {limits: {concurrency: 1}}"),
    small_with("classes: {interactive: {ttft: 1s}, long: {}, batch: {}}"),
    small_with("classes: {interactive: {degradation_steps: [{level: 2, model: smollm2}]}, long: {}, batch: {}}"),
    small_with("headroom: {kv_percent: 94}"),
    small_with("zone: a"),
    SMALL.replace("8081", "8082"),
    SMALL.replace("smollm2", "smollm3"),
    SMALL.replace("anonymous_tenant: demo", ""),
    SMALL.replace("demo: {}", f"demo: {{keys: ['{_DIGEST}']}}") + SECRET,
]
"""They need a secret `S` in the environment."""
