"""Any source yields a valid configuration or a one-line error."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.config.convert.builders import ConversionError, converted, settings_of

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
