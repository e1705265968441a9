"""Tests that both sides get the same work and that truncated responses are detected."""

import json

import pytest

from bench.fixed_work import TOKENS_MAX, TOKENS_MIN, Task, WorkFailed, run_tasks, tasks
from bench.mock_upstream import MODEL


def of(upstream_port: int) -> dict[str, object]:
    return {"port": upstream_port, "key": "none", "model": MODEL, "at_once": 2, "seconds_max": 30.0}


def test_tasks_are_reproducible_and_vary_in_length() -> None:
    work = tasks(64)

    assert work == tasks(64)
    assert {TOKENS_MIN, TOKENS_MAX} < {task.tokens for task in work}
    assert len({task.prompt for task in work}) > 30


def test_task_requests_exact_number_of_tokens() -> None:
    body = json.loads(Task("Hi", 9).body("m"))

    assert (body["min_tokens"], body["max_tokens"], body["ignore_eos"]) == (9, 9, True)


async def test_tokens_are_taken_from_usage(upstream_port: int) -> None:
    work = [Task(f"chunks={tokens} pace_ms=1", tokens) for tokens in (3, 8, 5, 4)]

    done = await run_tasks(work, **of(upstream_port))  # type: ignore[arg-type]

    assert done.tokens == 20
    # Two concurrent streams, with a millisecond between chunks.
    assert done.seconds > 0.005


async def test_work_fails_if_response_is_too_short(upstream_port: int) -> None:
    with pytest.raises(WorkFailed, match="report 3 tokens, expected 4"):
        await run_tasks([Task("chunks=3 pace_ms=0", 4)], **of(upstream_port))  # type: ignore[arg-type]


async def test_work_fails_if_it_times_out(upstream_port: int) -> None:
    with pytest.raises(WorkFailed, match="0 of 1 responses ended"):
        await run_tasks([Task("chunks=100 pace_ms=100", 100)], **of(upstream_port) | {"seconds_max": 0.2})  # type: ignore[arg-type]
