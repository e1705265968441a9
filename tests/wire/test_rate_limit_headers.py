"""Rate limits in response headers of hosted providers, including hostile ones."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.provider_limits import LEFT_MAX, WAIT_NS_MAX, ProviderLimits
from headgate.model.units import MILLISECOND, MINUTE, SECOND
from headgate.wire.rate_limit_headers import read_rate_limits

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()


def limits(status: int = 200, **headers: str) -> ProviderLimits | None:
    """Limits in headers whose names are written with underscores."""
    names = {name: name.replace("_", "-").replace("llm-provider", "llm_provider") for name in headers}
    return read_rate_limits(status, {names[name].encode(): text.encode() for name, text in headers.items()}, NOW)


def blocked(status: int, **headers: str) -> int:
    found = limits(status, **headers)
    return 0 if found is None else found.blocked_ns


def test_openai_headers_are_read() -> None:
    found = limits(
        x_ratelimit_limit_requests="60",
        x_ratelimit_remaining_requests="59",
        x_ratelimit_reset_requests="1s",
        x_ratelimit_limit_tokens="150000",
        x_ratelimit_remaining_tokens="149984",
        x_ratelimit_reset_tokens="6m0s",
    )

    assert found == ProviderLimits(59, SECOND, 149_984, 6 * MINUTE)


def test_anthropic_headers_are_read() -> None:
    found = limits(
        anthropic_ratelimit_requests_limit="50",
        anthropic_ratelimit_requests_remaining="49",
        anthropic_ratelimit_requests_reset="2026-03-01T12:00:02Z",
        anthropic_ratelimit_tokens_remaining="0",
        anthropic_ratelimit_tokens_reset="2026-03-01T13:00:30.5+01:00",
    )

    assert found == ProviderLimits(49, 2 * SECOND, 0, 30_500 * MILLISECOND)


def test_headers_that_litellm_passes_on_are_read() -> None:
    found = limits(
        429,
        x_ratelimit_remaining_requests="0",
        llm_provider_x_ratelimit_remaining_requests="7",
        llm_provider_x_ratelimit_reset_requests="3s",
        llm_provider_anthropic_ratelimit_tokens_remaining="5",
        llm_provider_anthropic_ratelimit_tokens_reset="2026-03-01T12:00:02Z",
        llm_provider_retry_after="60",
    )

    assert found == ProviderLimits(0, 3 * SECOND, 5, 2 * SECOND, 60 * SECOND)


@pytest.mark.parametrize(
    ("text", "wait_ns"),
    [
        ("6m0s", 6 * MINUTE),
        ("1m30.5s", 90_500 * MILLISECOND),
        ("250ms", 250 * MILLISECOND),
        ("12", 12 * SECOND),
        ("0.25", 250 * MILLISECOND),
        ("99h", WAIT_NS_MAX),
        ("Sun, 01 Mar 2026 12:00:07 GMT", 7 * SECOND),
        ("2026-03-01T12:00:07", 7 * SECOND),
        ("2026-03-01T11:00:00Z", SECOND),
    ],
)
def test_resets_are_durations_seconds_or_times(text: str, wait_ns: int) -> None:
    found = limits(x_ratelimit_remaining_requests="0", x_ratelimit_reset_requests=text)

    assert found == ProviderLimits(0, wait_ns)


@pytest.mark.parametrize(
    "text", ["", "-1", "1e9", "soon", "1s1", "nan", "9" * 40, "0x10", "1s " * 30, "٣", "9999-99-99T00:00:00Z"]
)
def test_malformed_reset_counts_as_missing(text: str) -> None:
    found = limits(x_ratelimit_remaining_requests="3", x_ratelimit_reset_requests=text)

    assert found == ProviderLimits(3, SECOND)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "many", "9" * 19, "1_000", "٣", " "])
def test_malformed_rest_counts_as_missing(text: str) -> None:
    assert limits(x_ratelimit_remaining_requests=text, x_ratelimit_reset_requests="1s") is None


def test_huge_rest_is_lowered_to_the_bound() -> None:
    assert limits(x_ratelimit_remaining_tokens="9" * 18) == ProviderLimits(None, 0, LEFT_MAX, SECOND)


def test_rejection_blocks_for_the_time_in_retry_after() -> None:
    assert blocked(429, retry_after="7") == 7 * SECOND
    assert blocked(429, retry_after="Sun, 01 Mar 2026 12:00:03 GMT") == 3 * SECOND
    assert blocked(429, retry_after="7", retry_after_ms="1500") == 1_500 * MILLISECOND
    assert blocked(503, retry_after="2") == 2 * SECOND
    assert blocked(429, retry_after="0") == MILLISECOND
    assert blocked(429, retry_after="86400") == WAIT_NS_MAX


def test_rejection_without_a_time_blocks_for_a_second() -> None:
    assert blocked(429) == SECOND
    assert blocked(529) == SECOND
    assert blocked(429, retry_after="later") == SECOND


def test_other_statuses_do_not_block() -> None:
    assert blocked(503) == 0
    assert blocked(500, retry_after="5") == 0
    assert blocked(200, retry_after="5") == 0


def test_response_without_rate_limits_gives_none() -> None:
    assert limits(content_type="text/event-stream") is None


NAMES = [
    *(f"x-ratelimit-{word}-{kind}" for word in ("remaining", "reset") for kind in ("requests", "tokens")),
    *(f"anthropic-ratelimit-{kind}-{word}" for word in ("remaining", "reset") for kind in ("requests", "tokens")),
    "retry-after",
    "retry-after-ms",
]


@given(
    st.integers(100, 599),
    st.dictionaries(
        st.sampled_from([each.encode() for each in NAMES]),
        st.binary(max_size=80) | st.from_regex(rb"[0-9hms.TZ:,+ -]{0,40}"),
        max_size=10,
    ),
    st.floats(-1e12, 1e12),
)
def test_any_header_gives_values_within_their_bounds(status: int, headers: dict[bytes, bytes], now_s: float) -> None:
    found = read_rate_limits(status, headers, now_s)

    assert found is None or found.valid


def test_limits_age_while_they_wait_to_be_reported() -> None:
    aged = ProviderLimits(3, 5 * SECOND, 4, SECOND, 3 * SECOND).aged(2 * SECOND)

    assert aged == ProviderLimits(3, 3 * SECOND, 4, 0, SECOND)


@pytest.mark.parametrize("wait", ["0", "Sat, 28 Feb 2026 12:00:00 GMT"])
def test_rejection_stays_a_rejection_however_long_it_waits_to_be_reported(wait: str) -> None:
    found = limits(429, retry_after=wait)

    assert found is not None
    assert found.aged(9 * SECOND).blocked_ns == MILLISECOND
    assert ProviderLimits(3, SECOND).aged(9 * SECOND).blocked_ns == 0
