"""Setting trials and their overrides."""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from headgate.config.live_values import LiveValueNotation
from headgate.control.operator_overrides import MemoryOverrides, override_of, overrides_status
from headgate.control.rollouts.service import RolloutService
from headgate.control.trials import plan, service
from headgate.control.trials.plan import SettingTrial, TrialResult
from headgate.control.trials.samples import BlockTally
from headgate.control.trials.service import KEPT_S, RESULT_S, TrialService
from headgate.core.events import PolicyChanged
from headgate.edge.admin.trials import NewTrial
from headgate.model.outcome import Outcome
from headgate.model.overrides import SetSetting
from headgate.model.policy import DegradationRules, Model
from headgate.model.routes import ModelRoute
from headgate.model.units import SECOND, ClassName, Instant
from headgate.ports.directory import Actor, ChangeRejected, DirectoryUnavailable, NotFound, OverrideRow
from testing.builders import a_class, a_policy, arrived, at, completed, dispatch, end

ALICE = Actor("alice", "10.0.0.1")
ROUTES = (ModelRoute("old", ("p",), 1), ModelRoute("new", ("p",), 0))
POLICY = replace(
    a_policy(classes=(a_class("interactive"),), models=(Model("m", ("p",), routes=ROUTES),)),
    degradation=DegradationRules(),
)
KV = "headroom.kv_percent"


class Gateway:
    """A trial service with its store, as the gateway composes them. Blocks of 8 s have a guard period of 2 s."""

    def __init__(self, store: MemoryOverrides | None = None, now: Instant | None = None) -> None:
        self.now = now or at(1_000)
        self.store = store or MemoryOverrides(self.apply, lambda: self.now)
        lock = asyncio.Lock()
        self.trials = TrialService(lambda: self.now, LiveValueNotation(), lock, draw_seed=lambda: 1)
        self.rollouts = RolloutService(lambda: self.now)
        self.limits: dict[str, set[int]] = {"p": {4}}
        self.trials.in_flight_limits = lambda pool: self.limits[pool]
        self.trials.store = self.rollouts.store = self.store
        self._requests = 0
        self.apply()

    def apply(self) -> None:
        self.trials.policy = self.rollouts.policy = self.store.apply(POLICY)
        self.trials.samples.observe(PolicyChanged(self.trials.policy, "h"), [], self.now)

    async def start(self, setting: str = KV, value: str = "80", **fields: Any) -> dict[str, Any]:
        asked = NewTrial(setting, value, **{"block_s": 8, "duration_s": 240} | fields)
        return dict(await self.trials.start(asked, ALICE))

    async def pass_s(self, seconds: float, *, good_old: int = 40, good_new: int = 40) -> None:
        """40 requests arrive per second, of which this many are good."""
        for _ in range(round(2 * seconds)):
            self.now = Instant(self.now + SECOND // 2)
            self.serve(good_new if self.value != 95 else good_old)
            await self.trials.look()

    def serve(self, good: int) -> None:
        for number in range(20):
            self._requests += 1
            name = f"r{self._requests}"
            outcome = Outcome.COMPLETED if number < good // 2 else Outcome.SHED
            over = replace(end(name, outcome, attempts=1), bills=(), service_class="interactive")
            sent = [replace(dispatch(name), service_class="interactive")]
            self.trials.samples.observe(arrived(name, stream=False), sent, self.now)
            self.trials.samples.observe(completed(name), [over], self.now)

    @property
    def value(self) -> int:
        """Value of the setting in force."""
        found = [
            each
            for each in self.trials.policy.overrides
            if isinstance(each, SetSetting) and each.until > self.now and each.setting == KV
        ]
        return found[-1].value if found else 95

    async def status(self) -> dict[str, Any]:
        [found] = await self.trials.status()
        return dict(found)

    async def verbs(self) -> list[str]:
        return [each.verb for each in await self.store.overrides(limit=10)]


async def test_blocks_alternate_between_both_values_and_a_better_one_is_kept() -> None:
    gateway = Gateway()
    told = await gateway.start()
    assert (told["phase"], told["before"], told["value"], told["blocks"]) == ("running", "95", "80", 30)
    values: list[int] = []
    while (await gateway.status())["phase"] == "running":
        await gateway.pass_s(8, good_old=8, good_new=38)
        values.append(gateway.value)
    status = await gateway.status()

    assert values[0] == 95
    assert {80, 95} <= set(values[1:-1])
    assert (status["phase"], status["result"], gateway.value) == ("kept", "improved", 80)
    assert status["reason"].startswith("the new value is better: good requests of class interactive +75.0 points")
    assert status["effects"][0]["low"] > 0
    assert await gateway.verbs() == ["trial"]
    [row] = await gateway.store.overrides(limit=10)
    assert row.expires_at - row.created_at == KEPT_S * SECOND
    assert gateway.trials.stats().results["improved"] == 1


async def test_harmful_value_is_reverted_within_its_block() -> None:
    gateway = Gateway()
    await gateway.start()
    await gateway.pass_s(16)
    while gateway.value == 95:
        await gateway.pass_s(0.5)
    assert gateway.trials.stats().has_new_value
    await gateway.pass_s(4, good_new=5)
    status = await gateway.status()

    assert (status["phase"], status["result"], gateway.value) == ("reverted", "worse", 95)
    assert "requests of class interactive missed their targets or failed with the new value" in status["reason"]
    assert await gateway.verbs() == ["trial"]
    [row] = await gateway.store.overrides(limit=10)
    assert (override_of(row), row.expires_at - row.created_at) == (None, RESULT_S * SECOND)
    assert not gateway.trials.stats().running


async def test_equal_value_is_reverted_when_the_trial_is_over() -> None:
    gateway = Gateway()
    await gateway.start()
    await gateway.pass_s(241)
    status = await gateway.status()

    assert (status["phase"], status["result"], gateway.value) == ("reverted", "undecided", 95)


async def test_new_value_ends_with_its_block_even_if_nothing_looks_again() -> None:
    gateway = Gateway()
    await gateway.start()
    while gateway.value == 95:
        await gateway.pass_s(0.5)
    began, looks = gateway.now, 0
    while gateway.value == 80:
        gateway.now, looks = Instant(gateway.now + SECOND), looks + 1

    assert looks <= 9
    assert gateway.now - began <= 9 * SECOND


async def test_trial_is_interrupted_if_another_process_takes_over() -> None:
    gateway = Gateway()
    await gateway.start()
    await gateway.pass_s(20)
    await gateway.trials.look(decides=False)
    assert not gateway.trials.stats().running
    successor = Gateway(gateway.store, gateway.now)
    gateway.trials = successor.trials
    await successor.trials.look()
    status = await successor.status()

    assert (status["phase"], status["result"], gateway.value) == ("reverted", "interrupted", 95)
    assert await gateway.verbs() == ["trial"]


async def test_process_that_does_not_decide_leaves_the_trial_alone() -> None:
    gateway = Gateway()
    await gateway.start()
    gateway.now = Instant(gateway.now + 60 * SECOND)
    await gateway.trials.look(decides=False)

    assert (await gateway.status())["phase"] == "running"


async def test_new_configuration_ends_the_trial() -> None:
    gateway = Gateway()
    gateway.trials.configuration_applied()
    await gateway.start()
    await gateway.pass_s(30)
    assert (await gateway.status())["phase"] == "running"
    gateway.trials.configuration_applied()
    await gateway.pass_s(0.5)

    assert ((await gateway.status())["result"], gateway.value) == ("reloaded", 95)


async def test_operator_can_abort() -> None:
    gateway = Gateway()
    await gateway.start()
    while gateway.value == 95:
        await gateway.pass_s(0.5)
    told = await gateway.trials.abort(ALICE)

    assert (told["phase"], told["result"], told["reason"]) == ("reverted", "aborted", "aborted by alice")
    assert (gateway.value, await gateway.verbs()) == (95, ["trial"])
    audit = [(each.actor, each.action) for each in await gateway.store.audit(before=None, limit=20)]
    assert ("alice", "override.end") in audit
    assert "override.trial_block" not in {action for _, action in audit}
    assert len(audit) == 3, "its start, its result, and the end of the first override"
    assert audit[-1] == ("alice", "override.trial")
    with pytest.raises(NotFound, match="no setting trial is running"):
        await gateway.trials.abort(ALICE)


async def test_trial_whose_override_is_ended_stops() -> None:
    gateway = Gateway()
    started = await gateway.start()
    while gateway.value == 95:
        await gateway.pass_s(0.5)
    await gateway.store.end_override(started["override"], ALICE)
    await gateway.pass_s(0.5)

    assert (gateway.value, await gateway.verbs(), gateway.trials.stats().running) == (95, [], False)


async def test_block_override_that_an_operator_has_ended_is_left_out() -> None:
    gateway = Gateway()
    await gateway.start()
    while gateway.value == 95:
        await gateway.pass_s(0.5)
    [block] = [each for each in await gateway.store.overrides(limit=9) if each.verb == "trial_block"]
    await gateway.store.end_override(block.id, ALICE)
    await gateway.pass_s(8)

    assert ((await gateway.status())["phase"], (await gateway.status())["blocks_left_out"]) == ("running", 1)
    [newest] = await gateway.store.audit(before=None, limit=1)
    assert (newest.actor, newest.action, newest.target) == ("alice", "override.end", block.id)


async def test_next_trial_replaces_the_result_of_the_last_one() -> None:
    gateway = Gateway()
    await gateway.start()
    await gateway.trials.abort(ALICE)
    await gateway.start("pools.p.in_flight_max", "8")

    assert ((await gateway.status())["setting"], await gateway.verbs()) == ("pools.p.in_flight_max", ["trial"])


@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [
        ("classes.interactive.ttft", "2s", "cannot be tried on live traffic: it is part of the promise"),
        ("retry.attempts_max", "2", "is not a setting that can be tried on live traffic; available: pools.NAME.in_fl"),
        (KV, "95", "kv_percent is already 95; choose another value"),
        (KV, "200", "kv_percent: 200 is out of range; it can be 1 to 100"),
        (KV, "many", 'kv_percent: "many" is not a whole number'),
        ("degradation.recover_below_percent", "100", "cannot be 100: recover_below_percent would not be below"),
    ],
)
async def test_invalid_trials_are_rejected(setting: str, value: str, problem: str) -> None:
    with pytest.raises(ChangeRejected) as raised:
        await Gateway().start(setting, value)
    assert problem in str(raised.value)


async def test_value_that_does_not_fit_one_kept_before_is_rejected() -> None:
    gateway = Gateway()
    rules = POLICY.degradation
    recover_below = rules.escalate_above - 10
    kept = {"before": rules.recover_below, "value": recover_below}
    setting = "degradation.recover_below_percent"
    await gateway.store.create_override("trial_block", setting, kept, ALICE, reason="", duration_s=900)

    with pytest.raises(ChangeRejected, match="recover_below_percent would not be below escalate_above_percent"):
        await gateway.start("degradation.escalate_above_percent", str(recover_below // 10))


async def test_no_trial_starts_during_a_drill() -> None:
    gateway = Gateway()
    await gateway.store.create_override("drain", "p/1", {}, ALICE, reason="drill: endpoint-loss 1", duration_s=60)

    with pytest.raises(ChangeRejected, match=r"a drill is running \(drain p/1\); wait for its end"):
        await gateway.start()


class OtherClock(MemoryOverrides):
    """Store whose clock is 3 s behind."""

    async def create_override(self, *args: Any, **more: Any) -> OverrideRow:
        row = await super().create_override(*args, **more)
        return replace(row, created_at=Instant(row.created_at - 3 * SECOND))


async def test_trial_is_rejected_if_the_clock_of_the_database_differs() -> None:
    gateway = Gateway()
    gateway.trials.store = gateway.store = OtherClock(gateway.apply, lambda: gateway.now)

    with pytest.raises(ChangeRejected, match=r"differ by 3\.0 s, and at most 2\.0 s are allowed.*synchronize the clo"):
        await gateway.start()
    assert await gateway.verbs() == []


async def test_effects_are_computed_in_a_thread_when_a_group_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def effects(trial: SettingTrial, blocks: Mapping[int, BlockTally], classes: Sequence[ClassName]) -> Any:
        threads.append(threading.get_ident())
        return plan.effects(trial, blocks, classes)

    monkeypatch.setattr(service, "effects", effects)
    gateway = Gateway()
    await gateway.start()
    await gateway.pass_s(8 * 8 + 1)

    assert len(threads) == 3, "two blocks at the start, and three groups of two"
    assert threading.get_ident() not in threads


async def test_unknown_pool_or_class_is_not_found() -> None:
    gateway = Gateway()
    with pytest.raises(NotFound, match='pools has no "gone"; known: p'):
        await gateway.start("pools.gone.in_flight_max", "8")
    with pytest.raises(NotFound, match='classes has no "gone"; known: interactive'):
        await gateway.start("classes.gone.queue_length_max", "8")


async def test_pool_with_different_limits_is_rejected() -> None:
    gateway = Gateway()
    gateway.limits["p"] = {4, 8}
    with pytest.raises(ChangeRejected, match='pool "p" has endpoints with different values'):
        await gateway.start("pools.p.in_flight_max", "16")
    gateway.limits["p"] = set()
    with pytest.raises(ChangeRejected, match='pool "p" has no endpoints'):
        await gateway.start("pools.p.in_flight_max", "16")


async def test_trial_that_is_too_short_is_rejected() -> None:
    with pytest.raises(ChangeRejected, match="too short for a decision"):
        await Gateway().start(duration_s=60)


async def test_only_one_trial_or_rollout_runs_at_a_time() -> None:
    gateway = Gateway()
    await gateway.start()
    with pytest.raises(ChangeRejected, match=r"a trial of headroom\.kv_percent is running; wait for its end, or abort"):
        await gateway.start("headroom.long_lane_percent", "20")
    with pytest.raises(ChangeRejected, match=r"a trial of headroom\.kv_percent is running"):
        await gateway.rollouts.start("m", "new", None, ALICE, step_s=10, tolerance_percent=10)
    await gateway.trials.abort(ALICE)
    await gateway.rollouts.start("m", "new", None, ALICE, step_s=10, tolerance_percent=10)
    with pytest.raises(ChangeRejected, match='a rollout of "m" is running'):
        await gateway.start()


async def test_kept_value_must_be_written_into_the_file_before_the_next_trial() -> None:
    gateway = Gateway()
    await gateway.start()
    while (await gateway.status())["phase"] == "running":
        await gateway.pass_s(8, good_old=20, good_new=38)
    with pytest.raises(
        ChangeRejected, match=r"write its value into the configuration, reload it, and run `headgate op"
    ):
        await gateway.start(value="70")


async def test_gateway_without_operators_at_the_start_must_be_restarted() -> None:
    trials = TrialService(lambda: at(0), LiveValueNotation(), asyncio.Lock(), observes=False)
    assert trials.observers == ()
    with pytest.raises(ChangeRejected, match="restart it"):
        await trials.start(NewTrial(KV, "80"), ALICE)


def test_status_page_shows_the_setting() -> None:
    shown = overrides_status([SetSetting(KV, 95, 80, at(30))], at(10))

    assert shown == [{"verb": "trial", "target": KV, "remaining_s": 20}]


class Failing(MemoryOverrides):
    """Store that fails once it has a trial."""

    async def overrides(self, *, limit: int) -> list[OverrideRow]:
        found = await super().overrides(limit=limit)
        if found:
            raise DirectoryUnavailable("no connection")
        return list(found)


async def test_unavailable_store_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    gateway.store = Failing(gateway.apply, lambda: gateway.now)
    gateway.trials.store = gateway.store
    await gateway.start()
    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(gateway.trials.run(lambda: True, look_s=0))
        while "setting trial could not be updated; retrying" not in caplog.text:
            await asyncio.sleep(0)
        running.cancel()

    assert TrialResult.INTERRUPTED not in gateway.trials.results
    assert gateway.trials.has_new_value is False


class FailingOnce(MemoryOverrides):
    """Store whose next call of one kind fails, before or after its effect."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway.apply, lambda: gateway.now)
        self.fails = ""

    def fail(self, call: str) -> None:
        if self.fails == call:
            self.fails = ""
            raise DirectoryUnavailable("no connection")

    async def create_override(self, verb: str, target: str, *args: Any, **more: Any) -> OverrideRow:
        self.fail("before create")
        row = await super().create_override(verb, target, *args, **more)
        self.fail("after create")
        return row

    async def end_override(self, order_id: str, actor: Actor) -> OverrideRow:
        self.fail("before end")
        return await super().end_override(order_id, actor)


FAILURES = ("before create", "after create", "before end")


async def gateway_whose_store_fails_at_the_end(call: str, *, good_old: int, good_new: int) -> Gateway:
    """Returns a gateway whose store has failed while the result of a trial was stored."""
    gateway = Gateway()
    gateway.store = store = FailingOnce(gateway)
    gateway.trials.store = store
    await gateway.start()
    finish = gateway.trials._finish

    async def fail_first(*args: Any) -> OverrideRow:
        gateway.trials._finish = finish
        store.fails = call
        return await finish(*args)

    gateway.trials._finish = fail_first
    with pytest.raises(DirectoryUnavailable):
        await gateway.pass_s(300, good_old=good_old, good_new=good_new)
    return gateway


@pytest.mark.parametrize("call", FAILURES)
async def test_store_failure_does_not_stop_a_value_from_being_kept(call: str) -> None:
    gateway = await gateway_whose_store_fails_at_the_end(call, good_old=4, good_new=40)
    await gateway.trials.look()
    status = await gateway.status()

    assert (status["phase"], status["result"], gateway.value) == ("kept", "improved", 80)
    assert gateway.trials.stats().results["improved"] == 1
    assert await gateway.verbs() == ["trial"]


@pytest.mark.parametrize("call", FAILURES)
async def test_store_failure_does_not_stop_a_harmful_value_from_being_reverted(call: str) -> None:
    gateway = await gateway_whose_store_fails_at_the_end(call, good_old=40, good_new=4)
    await gateway.trials.look()
    status = await gateway.status()

    assert (status["phase"], status["result"], gateway.value) == ("reverted", "worse", 95)
    assert await gateway.verbs() == ["trial"]


@pytest.mark.parametrize("call", FAILURES)
async def test_abort_reverts_a_value_that_was_kept_only_halfway(call: str) -> None:
    gateway = await gateway_whose_store_fails_at_the_end(call, good_old=4, good_new=40)
    await gateway.trials.abort(ALICE)
    await gateway.trials.look()
    status = await gateway.status()

    assert (status["phase"], status["result"], gateway.value) == ("reverted", "aborted", 95)
    assert await gateway.verbs() == ["trial"]


async def test_next_leader_completes_a_result_that_was_stored_halfway() -> None:
    gateway = await gateway_whose_store_fails_at_the_end("before end", good_old=4, good_new=40)
    successor = Gateway(gateway.store, gateway.now)
    await successor.trials.look()
    status = await successor.status()

    assert (status["phase"], status["result"]) == ("kept", "improved")
    assert await successor.verbs() == ["trial"]
