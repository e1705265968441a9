"""HTTP reply for each outcome."""

import pytest

from headgate.model.outcome import HTTP_REPLIES, STREAM_INTERRUPTED, Outcome, RetryAfter


def test_every_outcome_has_http_reply() -> None:
    assert set(HTTP_REPLIES) == set(Outcome)


@pytest.mark.parametrize("outcome", [each for each in Outcome if HTTP_REPLIES[each].status in (429, 503)])
def test_every_429_and_503_reply_has_retry_after(outcome: Outcome) -> None:
    assert HTTP_REPLIES[outcome].retry_after is not RetryAfter.ABSENT


@pytest.mark.parametrize("outcome", [each for each in Outcome if 400 <= HTTP_REPLIES[each].status < 409])
def test_client_errors_below_409_should_not_be_retried(outcome: Outcome) -> None:
    assert HTTP_REPLIES[outcome].should_retry is False


@pytest.mark.parametrize("outcome", [Outcome.BUDGET_EXCEEDED, Outcome.RETRY_BUDGET_EXHAUSTED])
def test_requests_over_budget_should_not_be_retried(outcome: Outcome) -> None:
    assert HTTP_REPLIES[outcome].should_retry is False


def test_only_completion_and_interrupted_stream_have_status_200() -> None:
    assert [outcome for outcome in Outcome if HTTP_REPLIES[outcome].status == 200] == [Outcome.COMPLETED]
    assert STREAM_INTERRUPTED.status == 200


def test_http_replies_are_immutable() -> None:
    with pytest.raises(TypeError):
        HTTP_REPLIES[Outcome.COMPLETED] = STREAM_INTERRUPTED  # type: ignore[index]
