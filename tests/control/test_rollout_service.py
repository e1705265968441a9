"""Rollouts and their overrides."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from headgate.control.operator_overrides import MemoryOverrides, override_of
from headgate.control.rollouts.service import OVERRIDE_S, RolloutService
from headgate.core.events import PolicyChanged
from headgate.model.outcome import Outcome
from headgate.model.overrides import SetRouteWeights
from headgate.model.policy import Model, Policy
from headgate.model.routes import ModelRoute
from headgate.model.units import SECOND, Instant
from headgate.ports.directory import Actor, ChangeRejected, DirectoryUnavailable, NotFound, OverrideRow
from testing.builders import arrived, at, completed, dispatch, end, failed

ALICE = Actor("alice", "10.0.0.1")
ROUTES = (ModelRoute("old", ("a",), 1), ModelRoute("new", ("b",), 0))
POLICY = Policy(models=(Model("m", ("a",), routes=ROUTES), Model("n", ("a",))))


class DatabaseOverrides(MemoryOverrides):
    """Overrides that are not written at once."""

    async def create_override(self, *args: Any, **more: Any) -> OverrideRow:
        await asyncio.sleep(0)
        return await super().create_override(*args, **more)


class Gateway:
    """A rollout service with its store, as the gateway composes them."""

    def __init__(self) -> None:
        self.now = Instant(at(0))
        self.store = MemoryOverrides(self.apply, lambda: self.now)
        self.service = RolloutService(lambda: self.now)
        self.service.store = self.store
        self._requests = 0
        self.apply()

    def apply(self) -> None:
        self.service.policy = self.store.apply(POLICY)
        self.service.samples.observe(PolicyChanged(self.service.policy, "h"), [], self.now)

    async def start(self, **changes: Any) -> dict[str, Any]:
        terms = {"candidate": "new", "base": None, "step_s": 10, "tolerance_percent": 10} | changes
        return dict(await self.service.start("m", actor=ALICE, **terms))

    async def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now = Instant(self.now + SECOND)
            await self.service.look()

    def serve(self, route: str, count: int, *, fails: bool = False) -> None:
        for _ in range(count):
            self._requests += 1
            name = f"r{self._requests}"
            sent = replace(dispatch(name), route=route)
            ended = end(name, Outcome.ENGINE_ERROR if fails else Outcome.COMPLETED, attempts=1)
            self.service.samples.observe(arrived(name), [sent], self.now)
            self.service.samples.observe(
                failed(name) if fails else completed(name), [replace(ended, bills=())], self.now
            )

    @property
    def weights(self) -> dict[str, int]:
        [order] = [each for each in self.service.policy.overrides if isinstance(each, SetRouteWeights)]
        return dict(order.weights)

    async def status(self) -> dict[str, Any]:
        [found] = await self.service.status("m")
        return dict(found)


async def test_start_gives_the_candidate_1_percent() -> None:
    gateway = Gateway()
    told = await gateway.start()

    assert (told["phase"], told["percent"], told["base"], told["candidate"]) == ("running", 1, "old", "new")
    assert gateway.weights == {"old": 99, "new": 1}
    [row] = await gateway.store.overrides(limit=10)
    assert (row.verb, row.created_by, row.expires_at - row.created_at) == ("rollout", "alice", OVERRIDE_S * SECOND)


async def test_rollout_advances_while_the_candidate_is_as_good() -> None:
    gateway = Gateway()
    await gateway.start()
    await gateway.pass_s(1)
    gateway.serve("old", 5_000)
    gateway.serve("new", 500)
    await gateway.pass_s(8)
    assert (await gateway.status())["reason"] == "the step lasts at least another 1 s"
    await gateway.pass_s(1)

    assert gateway.weights == {"old": 95, "new": 5}
    assert len(await gateway.store.overrides(limit=10)) == 1
    [audit, *_] = [
        each for each in await gateway.store.audit(before=None, limit=9) if each.action == "override.rollout"
    ]
    assert audit.actor == "rollout"
    assert audit.after is not None
    assert str(audit.after["reason"]).startswith("the candidate is good enough: TTFT: too few samples")


async def test_rollout_reverts_before_the_step_ends_if_the_candidate_fails() -> None:
    gateway = Gateway()
    await gateway.start()
    await gateway.pass_s(1)
    gateway.serve("old", 1_000)
    gateway.serve("new", 40, fails=True)
    await gateway.pass_s(1)

    assert gateway.weights == {"old": 100, "new": 0}
    found = await gateway.status()
    assert (found["phase"], found["percent"]) == ("reverted", 0)
    assert found["reason"].startswith("the candidate is worse: errors +100.00 points")
    await gateway.pass_s(20)
    assert gateway.weights == {"old": 100, "new": 0}


async def test_looks_without_new_requests_do_not_count() -> None:
    gateway = Gateway()
    await gateway.start(step_s=100)
    await gateway.pass_s(1)
    gateway.serve("new", 1)
    await gateway.pass_s(5)
    gateway.serve("new", 1)
    await gateway.pass_s(5)
    found = await gateway.status()

    assert found["looks"] == 2
    assert [each["name"] for each in found["measurements"]] == ["TTFT", "TPOT", "errors", "missed targets", "cost"]
    assert {each["estimate"] for each in found["measurements"]} == {None}


async def test_another_scheduler_continues_from_the_step() -> None:
    gateway = Gateway()
    await gateway.start()
    await gateway.service.step("m", ALICE)
    successor = RolloutService(lambda: gateway.now)
    successor.store, successor.policy = gateway.store, gateway.service.policy
    await successor.look()
    [found] = await successor.status(None)

    assert (found["phase"], found["percent"]) == ("running", 5)
    assert successor.samples.of("m").keys() == {"old", "new"}


async def test_process_that_does_not_decide_does_not_measure() -> None:
    gateway = Gateway()
    await gateway.start()
    await gateway.service.look()
    await gateway.service.look(decides=False)

    assert gateway.service.samples.of("m") == {}


async def test_operator_steps_to_the_end_and_starts_again() -> None:
    gateway = Gateway()
    await gateway.start()
    percents = [(await gateway.service.step("m", ALICE))["percent"] for _ in range(4)]
    assert percents == [5, 25, 50, 100]
    assert (await gateway.service.step("m", ALICE))["phase"] == "done"
    assert gateway.weights == {"old": 0, "new": 100}
    with pytest.raises(ChangeRejected, match='the rollout of "m" is done; start a new one'):
        await gateway.service.step("m", ALICE)
    gateway.now = Instant(gateway.now + SECOND)
    assert (await gateway.start())["percent"] == 1
    assert gateway.weights == {"old": 99, "new": 1}


async def test_last_step_ends_after_its_time() -> None:
    gateway = Gateway()
    await gateway.start()
    for _ in range(4):
        await gateway.service.step("m", ALICE)
    await gateway.pass_s(11)

    assert (await gateway.status())["phase"] == "done"


async def test_abort_sends_all_traffic_to_the_base() -> None:
    gateway = Gateway()
    await gateway.start()
    told = await gateway.service.abort("m", ALICE)

    assert (told["phase"], told["reason"]) == ("reverted", "aborted by alice")
    assert gateway.weights == {"old": 100, "new": 0}
    with pytest.raises(ChangeRejected, match="is already reverted"):
        await gateway.service.abort("m", ALICE)


async def test_impossible_changes_are_rejected_with_the_next_step() -> None:
    gateway = Gateway()
    with pytest.raises(NotFound, match='no rollout of "m"; start one with `headgate rollout start`'):
        await gateway.service.step("m", ALICE)
    with pytest.raises(NotFound, match='no model "gone"'):
        await gateway.service.start("gone", "new", None, ALICE, step_s=1, tolerance_percent=1)
    with pytest.raises(ChangeRejected, match='has no route "gone"; available: old, new'):
        await gateway.start(candidate="gone")
    await gateway.start()
    with pytest.raises(ChangeRejected, match='a rollout of "m" is running; abort it first'):
        await gateway.start()
    gateway.service.observes = False
    with pytest.raises(ChangeRejected, match="no model had routes when the gateway started; restart it"):
        await gateway.start()
    assert gateway.service.observers == ()


async def test_override_of_a_newer_version_is_ignored() -> None:
    gateway = Gateway()
    await gateway.store.create_override("rollout", "m", {"format": 2}, ALICE, reason="", duration_s=9)
    row = OverrideRow("o", "rollout", "m", {"format": 2}, "", "a", Instant(0), Instant(1))

    assert override_of(row) is None
    assert await gateway.service.status(None) == []


class _Unreachable:
    async def overrides(self, *, limit: int) -> list[OverrideRow]:
        del limit
        raise DirectoryUnavailable("no database")


async def test_failure_of_the_store_is_logged_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    await gateway.start()
    gateway.service.store = _Unreachable()  # type: ignore[assignment]
    looked = asyncio.Event()

    def decides() -> bool:
        if caplog.records:
            looked.set()
        return True

    with caplog.at_level(logging.WARNING, logger="headgate"):
        running = asyncio.create_task(gateway.service.run(decides, look_s=0.001))
        await looked.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert "rollout could not be updated; retrying" in caplog.text


async def test_two_operators_cannot_start_a_rollout_at_the_same_time() -> None:
    gateway = Gateway()
    gateway.service.store = gateway.store = DatabaseOverrides(gateway.apply, lambda: gateway.now)

    results = await asyncio.gather(gateway.start(), gateway.start(), return_exceptions=True)

    assert [type(each) for each in results] == [dict, ChangeRejected]
    assert len(await gateway.store.overrides(limit=10)) == 1
