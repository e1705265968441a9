"""Conversion of nginx configurations."""

import pytest

from headgate.model.units import MINUTE, SECOND
from tests.config.convert.builders import converted, error_of, notes_of, settings_of, tree_of

UPSTREAM = "upstream vllm { server gpu-1:8000; server gpu-2:8000; }\n"
LOCATION = "location / { proxy_pass http://vllm; }"


def http(*servers: str, upstream: str = UPSTREAM, more: str = "") -> str:
    """A configuration with these lines in a `server` block."""
    inner = "\n".join(servers) or LOCATION
    return f"http {{\n{more}{upstream}server {{\n{inner}\n}}\n}}\n"


def upstream_with(*lines: str) -> str:
    return "upstream vllm {\n" + "\n".join(lines) + "\n}\n"


def notes_without_the_model(text: str) -> list[str]:
    return [note for note in notes_of(text) if "nginx has no model names" not in note]


def test_upstream_becomes_a_pool_and_a_model() -> None:
    tree = tree_of(http(), engine="vllm")

    assert tree["pools"] == {
        "vllm": {"engine": "vllm", "in_flight_max": 64, "endpoints": ["http://gpu-1:8000", "http://gpu-2:8000"]}
    }
    assert tree["models"] == {"vllm": "vllm"}
    assert tree["anonymous_tenant"] == "everyone"
    assert notes_of(http()) == [
        (
            'source:4: proxy_pass: changed: nginx has no model names, so the model is called "vllm"; clients must send '
            "it, or convert again with --model vllm=NAME"
        )
    ]


@pytest.mark.parametrize("models", [{"": "Qwen/Qwen3-8B"}, {"vllm": "Qwen/Qwen3-8B"}])
def test_model_name_can_be_given(models: dict[str, str]) -> None:
    assert tree_of(http(), models=models)["models"] == {"Qwen/Qwen3-8B": "vllm"}
    assert notes_of(http(), models=models) == []


def test_proxy_pass_without_upstream_becomes_a_pool() -> None:
    pools = tree_of(http("location / { proxy_pass http://127.0.0.1:8081; }", upstream=""))["pools"]

    assert {name: pool["endpoints"] for name, pool in pools.items()} == {"127.0.0.1-8081": ["http://127.0.0.1:8081"]}


def test_parameters_of_servers() -> None:
    upstream = upstream_with(
        "least_conn;",
        "server gpu-1:8000 weight=5 max_conns=32 max_fails=4 fail_timeout=1m30s;",
        "server gpu-2 max_conns=32;",
        "server gpu-3:8000 down;",
        "server unix:/run/engine.sock;",
        "server gpu-4:8000 backup slow_start=20s route=a;",
        "keepalive 16;",
    )
    result = converted(http(upstream=upstream))
    settings, tree = settings_of(result), tree_of(http(upstream=upstream))

    assert tree["pools"]["vllm"] == {
        "engine": "openai_compatible",
        "in_flight_max": 32,
        "endpoints": ["http://gpu-1:8000", "http://gpu-2:80"],
    }
    assert tree["pools"]["vllm-backup"]["served_model"] == "vllm"
    assert tree["models"] == {"vllm": {"pools": "vllm", "fallbacks": "vllm-backup"}, "vllm-backup": "vllm-backup"}
    health = settings.policy.health
    assert (health.consecutive_failures_max, health.ejection_ns, health.slow_start_ns) == (4, 90 * SECOND, 20 * SECOND)
    assert notes_without_the_model(http(upstream=upstream)) == [
        "source:3: least_conn: not carried over: Headgate routes by predicted time, with prefix affinity",
        "source:4: server: changed: its weight has no effect, because Headgate routes by predicted time",
        "source:6: server: not carried over: it is down; add it to the endpoints when it is back",
        "source:7: server: not carried over: only host names and addresses can be endpoints",
        'source:8: server: changed: it belongs to the model "vllm-backup", which is a fallback of "vllm"',
        "source:8: upstream server route: not carried over: has no equivalent",
        "source:9: keepalive: not carried over: Headgate keeps connections to engines open by itself",
    ]


def test_resolved_server_becomes_a_dns_fleet() -> None:
    [pool] = tree_of(http(upstream="upstream vllm { server engines.internal:8000 resolve; }\n"))["pools"].values()

    assert pool["fleet"] == {"kind": "dns", "name": "engines.internal", "port": 8000, "scheme": "http"}
    assert "endpoints" not in pool


@pytest.mark.parametrize(
    ("location", "url", "note"),
    [
        ("location /v1/ { proxy_pass http://h:1; }", "http://h:1", ""),
        ("location /v1/chat/completions { proxy_pass http://h:1; }", "http://h:1", ""),
        ("location / { proxy_pass http://h:1/; }", "http://h:1", ""),
        ("location / { proxy_pass http://h:1/team/; }", "http://h:1/team", ""),
        ("location /qwen/ { proxy_pass http://h:1/; }", "http://h:1", "clients use /v1 instead of /qwen/v1"),
        ("location /qwen/v1/ { proxy_pass http://h:1/v1/; }", "http://h:1", "clients use /v1 instead of /qwen/v1"),
        ("location ^~ /qwen { proxy_pass http://h:1; }", "http://h:1/qwen", "clients use /v1 instead of /qwen/v1"),
        ("location ~ ^/v1/(.*)$ { proxy_pass http://h:1; }", "http://h:1", ""),
        ('location "/a { b" { proxy_pass http://h:1/; }', "http://h:1", "clients use /v1 instead of /a { b/v1"),
    ],
)
def test_paths_become_base_paths(location: str, url: str, note: str) -> None:
    [pool] = tree_of(http(location, upstream=""))["pools"].values()

    assert pool["endpoints"] == [url]
    assert [each.partition("changed: ")[2] for each in notes_without_the_model(http(location, upstream=""))] == (
        [note] if note else []
    )


def test_several_locations_become_several_models() -> None:
    text = http(
        "location /a/ { proxy_pass http://a/; }",
        "location /b/ { proxy_pass http://b/; }",
        "location = /health { return 200; }",
        upstream="upstream a { server h:1; }\nupstream b { server h:2; }\nupstream unused { server h:3; }\n",
    )

    assert tree_of(text)["models"] == {"a": "a", "b": "b"}
    assert [each for each in notes_of(text) if "proxy_pass" in each and "model" not in each] == [
        "source:4: upstream unused: not carried over: no proxy_pass uses it",
        "source:8: location = /health: not carried over: it has no proxy_pass",
    ]


def test_timeouts_sizes_and_retries() -> None:
    text = http(
        LOCATION.replace("}", "proxy_read_timeout 120; proxy_next_upstream_tries 2; client_max_body_size 20m; }"),
        "client_max_body_size 1m; send_timeout 7s;",
        more="keepalive_timeout 65s 60s; client_header_timeout 500ms;\n",
    )
    settings = settings_of(converted(text))

    assert {each.first_token_ns_max for each in settings.policy.classes} == {2 * MINUTE}
    assert {each.idle_ns_max for each in settings.policy.classes} == {2 * MINUTE}
    assert settings.policy.retry.attempts_max == 2
    assert settings.limits.body_bytes_max == 20 * 2**20
    assert settings.limits.send_timeout_ns == 7 * SECOND
    assert settings.limits.keepalive_timeout_ns == 65 * SECOND
    assert settings.limits.header_timeout_ns == SECOND // 2
    assert [each for each in notes_of(text) if "client_max_body_size" in each] == [
        (
            "source:6: client_max_body_size: not carried over: limits.body_bytes_max applies to the whole gateway and "
            "is already 20MiB"
        )
    ]


def test_limits_with_a_constant_key_become_limits_of_the_tenant() -> None:
    text = http(
        LOCATION.replace(
            "}", "limit_req zone=all; limit_conn conns 20; limit_req zone=ip burst=5; limit_req zone=x; }"
        ),
        more="limit_req_zone $server_name zone=all:1m rate=30r/m;\nlimit_conn_zone fixed zone=conns:1m;\n"
        "limit_req_zone $binary_remote_addr zone=ip:1m rate=2r/s;\n",
    )

    assert tree_of(text)["tenants"] == {"everyone": {"limits": {"requests_per_minute": 30, "concurrency": 20}}}
    assert [each for each in notes_of(text) if "limit_req" in each] == [
        (
            "source:7: limit_req zone=ip burst=5: not carried over: it limits each $binary_remote_addr; Headgate "
            "limits tenants: create keys, and set requests_per_minute: 120 for each tenant"
        ),
        "source:7: limit_req zone=x: not carried over: its zone is not defined or not valid",
    ]


@pytest.mark.parametrize("access", ["auth_basic realm;", "auth_request /auth;", "deny all;"])
def test_clients_need_a_key_if_nginx_restricts_access(access: str) -> None:
    text = http(LOCATION, access, "limit_conn conns 5;", more="limit_conn_zone $server_name zone=conns:1m;\n")
    result = converted(text)

    assert "anonymous_tenant" not in tree_of(text)
    assert "# Clients need a key: nginx restricts access with" in result.text or "everyone" not in result.text
    assert any("set concurrency: 5 for each tenant" in each for each in notes_of(text))


def test_tls_of_the_listener_and_of_the_engines() -> None:
    text = http(
        "listen 443 ssl;",
        "ssl_certificate /pki/tls.crt; ssl_certificate_key /pki/tls.key;",
        "ssl_client_certificate /pki/ca.crt; ssl_verify_client on; ssl_protocols TLSv1.3;",
        "location / { proxy_pass https://vllm; proxy_ssl_name engines; proxy_ssl_certificate /pki/client.crt;",
        "proxy_ssl_certificate_key /pki/client.key; proxy_ssl_trusted_certificate /pki/engines.crt;",
        "proxy_ssl_verify on; }",
    )
    tree = tree_of(text)

    assert tree["listen_tls"] == {"certificate": "/pki/tls.crt", "key": "/pki/tls.key", "client_ca": "/pki/ca.crt"}
    assert tree["pools"]["vllm"]["tls"] == {
        "ca": "/pki/engines.crt",
        "certificate": "/pki/client.crt",
        "key": "/pki/client.key",
        "server_name": "engines",
    }
    assert tree["pools"]["vllm"]["endpoints"] == ["https://gpu-1:8000", "https://gpu-2:8000"]
    assert notes_without_the_model(text) == [
        "source:4: listen: changed: nginx listens on 443; set listen when you switch",
        "source:6: ssl_protocols: not carried over: Headgate offers TLS 1.2 and 1.3",
    ]


def test_engines_are_always_verified() -> None:
    text = http("location / { proxy_pass https://vllm; }")

    assert any(
        each.startswith("source: proxy_ssl_verify: changed: Headgate always verifies") for each in notes_of(text)
    )


def test_engine_key_becomes_an_environment_variable() -> None:
    text = http(LOCATION.replace("}", 'proxy_set_header Authorization "Bearer very-secret"; }'))
    result = converted(text)

    assert tree_of(text)["pools"]["vllm"]["api_key"] == "${VLLM_API_KEY}"
    assert "very-secret" not in result.text + "".join(map(str, result.notes))


def test_included_files_are_reported_unless_they_are_part_of_the_source() -> None:
    text = http(more="include conf.d/*.conf;\n")
    dump = f"# configuration file /etc/nginx/nginx.conf:\n{text}# configuration file /etc/nginx/conf.d/a.conf:\n"

    assert [each for each in notes_of(text) if "include" in each] == [
        "source:2: include: not carried over: included files are not read; convert the output of `nginx -T`"
    ]
    assert [each for each in notes_of(dump) if "include" in each] == []


def test_upstream_of_an_included_file_is_found_in_the_output_of_nginx() -> None:
    text = "# configuration file a:\nhttp { server { " + LOCATION + " } }\n# configuration file b:\n" + UPSTREAM

    assert tree_of(text)["models"] == {"vllm": "vllm"}


@pytest.mark.parametrize(
    "line",
    [
        "content_by_lua_block { if a then return { 1, 2 } end }",
        "set $x '}';",
        'add_header X "a\\"; b";',
        "if ($request_method = POST) { return 405; }",
        "rewrite ^/(.*)$ /${a}/$1; # {",
        "types { text/html html; }",
    ],
)
def test_unusual_syntax_is_read(line: str) -> None:
    name = line.split(maxsplit=1)[0]
    notes = notes_without_the_model(http(LOCATION, line))

    assert [each.partition(": ")[2].partition(": ")[0] for each in notes] == [name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http {", "source:1: has a block that is not closed"),
        ("http { }\n}", 'source:2: has an unexpected "}"'),
        ("http { a b", 'source:1: has a directive without ";"'),
        ("http { ; }", 'source:1: has a ";" without a directive'),
        ("http { { } }", 'source:1: has a "{" without a directive'),
        ('http { a "b; }', "source:1: has a string that is not closed"),
        ("http { a 'b\\", "source:1: has a string that is not closed"),
        ("http " * 3 + "{\n" + "a {\n" * 40, "source:33: has more than 32 nested blocks"),
        (
            "http { upstream a { server h:1; }\nupstream a { server h:2; } }",
            "source:2: upstream a: is already defined on line 1",
        ),
        ("http { server { listen 80; } }", "source: has no engine that Headgate can use: it has no proxy_pass"),
        (
            http("location / { proxy_pass http://$backend; }", upstream=""),
            "source: has no engine that Headgate can use: only http:// and https:// without variables",
        ),
    ],
)
def test_invalid_source_is_a_one_line_error(text: str, message: str) -> None:
    said = error_of(text, source_format="nginx")

    assert said.startswith(message)
    assert "\n" not in said
