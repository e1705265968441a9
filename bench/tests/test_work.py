"""Is the same work given to both sides, and is an answer that falls short noticed?"""

import json

import pytest

from bench.upstream import MODEL
from bench.work import TOKENS_MAX, TOKENS_MIN, Task, WorkFailed, do, tasks


def of(upstream_port: int) -> dict[str, object]:
    return {"port": upstream_port, "key": "none", "model": MODEL, "at_once": 2, "seconds_max": 30.0}


def test_the_work_is_the_same_each_time_and_of_many_lengths() -> None:
    work = tasks(64)

    assert work == tasks(64)
    assert {TOKENS_MIN, TOKENS_MAX} < {task.tokens for task in work}
    assert len({task.prompt for task in work}) > 30


def test_a_task_asks_for_exactly_so_many_tokens() -> None:
    body = json.loads(Task("Hi", 9).body("m"))

    assert (body["min_tokens"], body["max_tokens"], body["ignore_eos"]) == (9, 9, True)


async def test_tokens_are_those_that_the_usage_tells(upstream_port: int) -> None:
    work = [Task(f"chunks={tokens} pace_ms=1", tokens) for tokens in (3, 8, 5, 4)]

    done = await do(work, **of(upstream_port))  # type: ignore[arg-type]

    assert done.tokens == 20
    # Two at a time and a millisecond between chunks.
    assert done.seconds > 0.005


async def test_work_that_came_back_short_counts_for_nothing(upstream_port: int) -> None:
    with pytest.raises(WorkFailed, match="tell of 3 tokens where 4"):
        await do([Task("chunks=3 pace_ms=0", 4)], **of(upstream_port))  # type: ignore[arg-type]


async def test_work_that_does_not_end_in_time_is_given_up(upstream_port: int) -> None:
    with pytest.raises(WorkFailed, match="0 of 1 answers came"):
        await do([Task("chunks=100 pace_ms=100", 100)], **of(upstream_port) | {"seconds_max": 0.2})  # type: ignore[arg-type]
