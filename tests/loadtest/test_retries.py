"""Tests that the load test client retries as the official OpenAI client does."""

from email.utils import formatdate

import pytest
from openai import OpenAI
from openai._models import FinalRequestOptions

from headgate.loadtest.retries import wait_before_retry_s

UNIX_S = 1_700_000_000.0


def wait(status: int | None = 503, *, taken: int = 0, chance: float = 0.0, **headers: str) -> float | None:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return wait_before_retry_s(status=status, headers=named, retries_taken=taken, chance=chance, unix_s=UNIX_S)


@pytest.mark.parametrize("status", [None, 408, 409, 429, 500, 502, 503, 504, 599])
def test_retryable_status_is_retried(status: int | None) -> None:
    assert wait(status) == 0.5


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 499])
def test_other_client_error_status_is_not_retried(status: int) -> None:
    assert wait(status) is None


def test_x_should_retry_header_overrides_the_status() -> None:
    assert wait(400, x_should_retry="true") == 0.5
    assert wait(429, x_should_retry="false") is None
    assert wait(429, x_should_retry="maybe") == 0.5


def test_backoff_doubles_up_to_a_limit() -> None:
    assert [wait(taken=taken) for taken in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]


def test_jitter_shortens_the_backoff_by_up_to_a_quarter() -> None:
    assert wait(taken=1, chance=1.0) == 0.75


def test_retry_after_headers_set_the_backoff() -> None:
    assert wait(retry_after="3", chance=1.0) == 3.0
    assert wait(retry_after="0.25") == 0.25
    assert wait(retry_after_ms="40", retry_after="3") == 0.04
    assert wait(retry_after_ms="soon", retry_after="3") == 3.0
    assert wait(retry_after=formatdate(UNIX_S + 9, usegmt=True)) == 9.0


@pytest.mark.parametrize("nonsense", ["0", "-3", "soon", "nan", "inf", ""])
def test_invalid_retry_after_is_ignored(nonsense: str) -> None:
    assert wait(retry_after=nonsense) == 0.5


def test_request_is_not_retried_if_retry_after_exceeds_two_minutes() -> None:
    assert wait(retry_after="120") == 120.0
    assert wait(retry_after="121") is None
    assert wait(retry_after="121", x_should_retry="true") is None
    assert wait(retry_after_ms="121000") is None


@pytest.mark.parametrize("status", [400, 408, 409, 418, 429, 500, 503])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-should-retry": "true"},
        {"x-should-retry": "false"},
        {"retry-after": "7"},
        {"retry-after": "200"},
        {"retry-after-ms": "250", "retry-after": "7"},
        {"retry-after": "0"},
        {"retry-after": "never"},
    ],
    ids=str,
)
def test_retry_decision_matches_the_official_client(status: int, headers: dict[str, str]) -> None:
    httpx2 = pytest.importorskip("httpx2")
    sdk = OpenAI(api_key="none")
    response = httpx2.Response(status, headers=headers)
    options = FinalRequestOptions.construct(method="post", url="/")

    ours = wait(status, **{name.replace("-", "_"): value for name, value in headers.items()})

    assert (ours is not None) == sdk._should_retry(response)
    if ours is not None:
        theirs = sdk._calculate_retry_timeout(2, options, response.headers)
        # The official client's jitter cannot be seeded.
        assert ours * 0.75 <= theirs <= ours
