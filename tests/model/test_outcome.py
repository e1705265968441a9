"""Does every ending say what a caller must know?"""

import pytest

from headgate.model.outcome import FACES, STREAM_INTERRUPTED, Outcome, RetryAfter


def test_every_outcome_has_a_face() -> None:
    assert set(FACES) == set(Outcome)


@pytest.mark.parametrize("outcome", [each for each in Outcome if FACES[each].status in (429, 503)])
def test_every_429_and_503_carries_retry_after(outcome: Outcome) -> None:
    assert FACES[outcome].retry_after is not RetryAfter.ABSENT


@pytest.mark.parametrize("outcome", [each for each in Outcome if 400 <= FACES[each].status < 409])
def test_what_is_wrong_with_the_request_itself_is_not_to_be_retried(outcome: Outcome) -> None:
    assert FACES[outcome].should_retry is False


@pytest.mark.parametrize("outcome", [Outcome.OVER_BUDGET, Outcome.RETRY_REFUSED])
def test_exhausted_budgets_are_not_to_be_retried(outcome: Outcome) -> None:
    assert FACES[outcome].should_retry is False


def test_only_completion_and_an_interrupted_stream_are_200() -> None:
    assert [outcome for outcome in Outcome if FACES[outcome].status == 200] == [Outcome.COMPLETED]
    assert STREAM_INTERRUPTED.status == 200


def test_faces_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        FACES[Outcome.COMPLETED] = STREAM_INTERRUPTED  # type: ignore[index]
