"""Any source yields a valid configuration or a one-line error."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from tests.config.convert import test_inference_pool
from tests.config.convert.builders import ConversionError, converted, settings_of
from tests.config.convert.envoy_example import every_setting

WORDS = (
    *("", "0", "1", "-1", "1.5", "30s", "1e400", "99999999999999999", "true", "none", "x", "a/b", "*", "é\u2028\x07"),
    *("openai/x", "hosted_vllm/y", "azure/z", "http://h:1", "http://h:2/v1", "https://u:p@h", "http://[::1]:9/b", "//"),
    *("os.environ/KEY", "os.environ/", "os.environ/a b", "sk-1", "${X}", "a: b", "# c", "null", "~", "1d", "30d"),
)
words = st.sampled_from(WORDS) | st.text(max_size=6)
ANY = st.recursive(
    words | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


def some_of(names: str, values: st.SearchStrategy) -> st.SearchStrategy[dict]:
    """Mappings with some of the names."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names.split(), values))


def mostly(usual: st.SearchStrategy, *, rarely: st.SearchStrategy = ANY) -> st.SearchStrategy:
    return st.one_of(usual, usual, usual, rarely)


def is_valid_or_an_error(text: str, source_format: str | None = None) -> None:
    said = ""
    try:
        assert settings_of(converted(text, {"BASE": "http://h:3"}, source_format=source_format, key_secret=b"k" * 32))
    except ConversionError as error:
        said = str(error)

    assert "\n" not in said
    assert "the result is not valid" not in said


LITELLM_DEPLOYMENTS = st.fixed_dictionaries(
    {
        "model_name": words,
        "litellm_params": mostly(
            some_of(
                "model api_base api_key rpm weight max_parallel_requests input_cost_per_token output_cost_per_token",
                words,
            ).map(lambda given: {"model": "openai/x", "api_base": "http://h:1", **given})
        ),
    },
    optional={"model_info": mostly(some_of("id mode input_cost_per_token cache_read_input_token_cost", words))},
)
LITELLM = st.fixed_dictionaries(
    {"model_list": mostly(st.lists(LITELLM_DEPLOYMENTS, max_size=4))},
    optional={
        "router_settings": mostly(
            some_of(
                "num_retries timeout stream_timeout allowed_fails cooldown_time routing_strategy default_fallbacks",
                words,
            )
            | st.fixed_dictionaries(
                {"fallbacks": mostly(st.lists(st.dictionaries(words, st.lists(words, max_size=2), max_size=2)))}
            )
            | st.fixed_dictionaries({"model_group_alias": mostly(st.dictionaries(words, words, max_size=3))})
        ),
        "general_settings": mostly(
            some_of("master_key max_parallel_requests global_max_parallel_requests max_request_size_mb", words)
        ),
        "litellm_settings": mostly(some_of("num_retries request_timeout max_budget budget_duration", words)),
        "environment_variables": ANY,
        "other": ANY,
    },
)


@given(LITELLM)
def test_any_litellm_configuration_is_valid_or_an_error(tree: dict) -> None:
    is_valid_or_an_error(json.dumps(tree), "litellm")


@given(st.text() | ANY.map(json.dumps))
def test_any_text_is_valid_or_an_error(text: str) -> None:
    is_valid_or_an_error(text)


NGINX_WORDS = st.sampled_from(
    (
        *(
            "vllm",
            "other",
            "http://vllm",
            "https://vllm/x/",
            "http://h:1",
            "/",
            "/v1/",
            "~",
            "h:2",
            "unix:/a",
            "backup",
        ),
        *("down", "resolve", "weight=2", "max_conns=4", "max_fails=0", "fail_timeout=1h", "max_conns=x", "zone=z:1m"),
        *("zone=z", "rate=1r/s", "5", "0", "10m", "30s", "off", "on", "Authorization", "'Bearer k'", "$x", "/a.pem"),
        *('"${x}"', "'\\''", "a" * 300, "é\u2028"),
    )
)
NGINX_NAMES = st.sampled_from(
    (
        *("server", "proxy_pass", "proxy_read_timeout", "client_max_body_size", "keepalive_timeout", "limit_req"),
        *("limit_conn", "limit_req_zone", "limit_conn_zone", "proxy_set_header", "ssl_certificate", "auth_basic"),
        *("ssl_certificate_key", "proxy_ssl_name", "proxy_ssl_verify", "proxy_next_upstream", "listen", "ip_hash"),
        *("proxy_next_upstream_tries", "worker_shutdown_timeout", "ssl_client_certificate", "ssl_verify_client"),
    )
)
SIMPLE = st.tuples(NGINX_NAMES, st.lists(NGINX_WORDS, max_size=3)).map(lambda each: " ".join([each[0], *each[1]]) + ";")


def block(name: str, arguments: st.SearchStrategy[str], inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(arguments, st.lists(inner, max_size=4)).map(
        lambda each: f"{name} {each[0]} {{ {' '.join(each[1])} }}"
    )


NGINX_LOCATION = block("location", NGINX_WORDS, SIMPLE | st.just("proxy_pass http://vllm;"))
NGINX_UPSTREAM = block(
    "upstream",
    st.sampled_from(["vllm", "other"]),
    st.lists(NGINX_WORDS, min_size=1, max_size=3).map(lambda words: f"server {' '.join(words)};") | SIMPLE,
)
NGINX = block("http", st.just(""), NGINX_UPSTREAM | block("server", st.just(""), NGINX_LOCATION | SIMPLE) | SIMPLE)


@example("http { server { location vllm { proxy_pass http://vllm; } limit_conn; } limit_conn_zone; }")
@given(NGINX)
def test_any_nginx_configuration_is_valid_or_an_error(text: str) -> None:
    is_valid_or_an_error(text, "nginx")


@given(st.text(alphabet="ab{};\"'\\$ #\n"))
def test_any_text_in_the_syntax_of_nginx_is_valid_or_an_error(text: str) -> None:
    is_valid_or_an_error(text, "nginx")


def changed_at_random(base: dict) -> st.SearchStrategy[dict]:
    """The tree with up to five values replaced or removed."""
    places = list(places_in(base))
    return st.lists(st.tuples(st.sampled_from(places), VALUES), max_size=5).map(lambda changes: changed(base, changes))


def places_in(tree: object, place: tuple = ()) -> Iterator[tuple]:
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*place, key)
        yield from places_in(value, (*place, key))


def changed(base: dict, changes: list[tuple[tuple, object]]) -> dict:
    tree = copy.deepcopy(base)
    for place, value in changes:
        inner = tree
        for key in place[:-1]:
            inner = inner[key] if _has(inner, key) else None
        if isinstance(inner, dict) or _has(inner, place[-1]):
            inner[place[-1]] = value
    return tree


def _has(tree: object, key: str | int) -> bool:
    """Returns whether the tree still has the key. An earlier change may have replaced a mapping by a list."""
    if isinstance(tree, list):
        return isinstance(key, int) and key < len(tree)
    return isinstance(tree, dict) and key in tree


VALUES = st.one_of(
    st.none(),
    words,
    st.sampled_from(("10s", "0s", "0.25s", "1e9s", "-1s", "400000s", "0", "1", "7", "100000", "-3", "2.5", "h", "::1")),
    st.sampled_from(("STRICT_DNS", "LOGICAL_DNS", "EDS", "vllm", "other", "/v1", "/a/v1/", "/health", "HIGH")),
    ANY,
)


ENVOY = every_setting(Path("/pki"))


@given(changed_at_random(ENVOY))
def test_any_envoy_configuration_is_valid_or_an_error(tree: dict) -> None:
    is_valid_or_an_error(json.dumps(tree), "envoy")


MODEL = {"criticality": "Critical", "modelName": "a", "poolRef": {"name": "qwen3"}, "targetModels": [{"name": "b"}]}
RULE = {
    "matches": [test_inference_pool.by_header("m")],
    "backendRefs": [test_inference_pool.backend(weight=1)],
    "timeouts": {"request": "10s"},
    "retry": {"attempts": 2},
}
MANIFESTS = {
    "kind": "List",
    "items": [
        test_inference_pool.pool(),
        test_inference_pool.old_pool("other"),
        test_inference_pool.service(),
        test_inference_pool.manifest("InferenceModel", "model", **MODEL),
        test_inference_pool.objective("chat", priority=1),
        test_inference_pool.objective("batch", priority=-1),
        test_inference_pool.route(RULE),
    ],
}


@given(changed_at_random(MANIFESTS))
def test_any_inference_pool_is_valid_or_an_error(tree: dict) -> None:
    is_valid_or_an_error(json.dumps(tree), "inferencepool")
