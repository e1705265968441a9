"""Drills against a fleet with a virtual clock: refusals, the act and its undoing on every path, and the figures."""

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from headgate.cli import drill as drill_verb
from headgate.cli.drills.cell_failover import CellFailoverDrill
from headgate.cli.drills.cold_start import ColdStartDrill
from headgate.cli.drills.drill_result import DrillResult
from headgate.cli.drills.drill_run import DrillRefused, DrillRun
from headgate.cli.drills.endpoint_loss import EndpointLossDrill
from headgate.cli.drills.fleet import DrillCell, DrillEndpoint, ScalingLimits
from headgate.cli.drills.overload import AddedLoad, OverloadDrill
from headgate.cli.drills.preflight import check_fleet
from headgate.cli.input.admin_request import AdminResponseLost
from headgate.cli.input.operator_key import ADMIN_KEY_VARIABLE
from headgate.cli.status import ADMIN_URL_VARIABLE
from headgate.control.trials.plan import SettingTrial, TrialPhase, TrialResult
from headgate.loadtest.request import LoadTestOutcome, LoadTestRequest
from tests.cli.drill_fleet import FakeFleet, a_cell, an_endpoint

LOSS = EndpointLossDrill(None, None, interrupt=False, before_s=10, for_s=20, after_s=15, force=False)
START = ColdStartDrill(None, before_s=5, wait_s=None, after_s=10, force=False)
FAILOVER = CellFailoverDrill(before_s=5, after_s=10, gap_s_max=1.0, pause_s=5, force=False)
FOLLOWER = DrillCell(
    "g1", "following", leads=False, scheduler="g2", epoch=3, admin_addresses={"g1": "http://one", "g2": "http://two"}
)
RUNNING = SettingTrial("pools.p.in_flight_max", 8, 12, share_percent=50, block_s=60, duration_s=1_200, seed=1)
SCALED = {"p": ScalingLimits(desired=2, endpoints_max=4, cold_start_s=30)}


def performed(drill: Any, fleet: FakeFleet, *, stop_at_s: float | None = None) -> tuple[DrillResult, DrillRun]:
    run = DrillRun(fleet)
    before = fleet.tick

    def tick(at: FakeFleet) -> None:
        before(at)
        if stop_at_s is not None and at.seconds >= stop_at_s:
            run.end_early("interrupted by SIGINT")

    fleet.tick = tick
    return asyncio.run(_perform(drill, run)), run


async def _perform(drill: Any, run: DrillRun) -> DrillResult:
    await check_fleet(run, force=drill.force)
    return await drill.perform(run)


def refusal(drill: Any, fleet: FakeFleet) -> str:
    with pytest.raises(DrillRefused) as refused:
        performed(drill, fleet)
    return str(refused.value)


def nothing_changed(fleet: FakeFleet) -> bool:
    return {path for path, _ in fleet.calls} <= {"overrides/list"} and not fleet.overrides


# Refusals


@pytest.mark.parametrize(
    ("fleet", "why"),
    [
        (FakeFleet(endpoints=(an_endpoint("e1"), DrillEndpoint("e2", "p", "ejected"))), "not all endpoints are ready"),
        (FakeFleet(incidents=lambda _: {"overload": "Too much."}), "the verdict is overload: Too much"),
        (FakeFleet(down=lambda _: True), "no gateway is responding"),
        (FakeFleet(failure=lambda *_: 'operator "eve" lacks the permission "read"'), 'lacks the permission "read"'),
        (FakeFleet(endpoints=(an_endpoint("e1"),)), "e1 is the only serving endpoint of pool p"),
        (FakeFleet(objectives={}), "no class has objectives"),
        (FakeFleet(rate=0), "nothing could be measured"),
    ],
)  # fmt: skip
def test_drill_is_refused_and_changes_nothing(fleet: FakeFleet, why: str) -> None:
    assert why in refusal(LOSS, fleet)
    assert nothing_changed(fleet)


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ({"verb": "throttle", "reason": "drill: overload 1a"}, "another drill is running: throttle x (o1)"),
        ({"verb": "rollout", "reason": ""}, "a rollout is running: rollout x (o1)"),
        ({"verb": "drain", "reason": "new driver"}, "an operator has drained an endpoint: drain x (o1)"),
        ({"verb": "hold", "reason": ""}, "an operator holds the requests of a class: hold x (o1)"),
        ({"verb": "pin", "reason": ""}, "an operator has pinned a pool's degradation level: pin x (o1)"),
        ({"verb": "trial", "reason": "", **RUNNING.terms()}, "a setting trial is running: trial x (o1)"),
        ({"verb": "trial", "reason": "", "phase": 99}, "a setting trial is running: trial x (o1)"),
        ({"verb": "trial_block", "reason": "block 3"}, "a setting trial is running: trial_block x (o1)"),
    ],
)
def test_drill_is_refused_while_another_change_is_in_force_unless_forced(override: dict[str, Any], why: str) -> None:
    row = {"override": "o1", "target": "x", "until_s": 1_000.0, **override}
    assert why in refusal(LOSS, FakeFleet(overrides=[row]))

    fleet = FakeFleet(overrides=[row])
    fleet.overrides[0]["reason"] = "held since yesterday" if override["verb"] != "throttle" else row["reason"]
    if override["verb"] != "throttle":
        result, run = performed(replace(LOSS, force=True), fleet)
        assert result.held
        assert any("started with --force although" in text for _, text in run.timeline)


def test_drill_runs_while_the_value_of_an_ended_trial_is_kept() -> None:
    kept = RUNNING.ended(TrialPhase.KEPT, TrialResult.IMPROVED)
    row = {"override": "o1", "verb": "trial", "target": kept.setting, "reason": "", "until_s": 1_000.0, **kept.terms()}

    assert performed(LOSS, FakeFleet(overrides=[row]))[0].held


def test_operator_without_the_permission_to_operate_is_refused_before_anything_happens() -> None:
    message = 'operator "eve" lacks the permission "operate"'
    fleet = FakeFleet(failure=lambda _, path: message if path == "overrides/create" else None)

    assert refusal(LOSS, fleet) == message
    assert fleet.overrides == []


RIVAL = {"override": "o1", "verb": "drain", "target": "e1", "reason": "drill: x 1", "until_s": 1_000.0}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["endpoint-loss", "overload"])
def test_two_drills_that_start_at_the_same_moment_end_themselves(kind: str, *, force: bool) -> None:
    def start_rival(at: FakeFleet, path: str) -> None:
        if path == "overrides/create":
            at.overrides.append(RIVAL)

    fleet = FakeFleet(failure=start_rival)
    overload, traffic = an_overload(fleet, force=force)
    result, run = performed(replace(LOSS, force=force) if kind == "endpoint-loss" else overload, fleet)

    # The act was in force for a moment, so the drill was not refused.
    assert not result.held
    assert run.stopped_because.startswith("another drill started at the same moment; undone after 0.0 s")
    assert result.undone.startswith("ended ovr_")
    assert (fleet.overrides, traffic.load) == ([RIVAL], None)


def test_forced_drill_runs_beside_a_drill_that_is_already_running() -> None:
    fleet = FakeFleet(overrides=[RIVAL])
    result, run = performed(replace(LOSS, endpoint="e2", force=True), fleet)

    assert (result.held, run.stopped) == (True, False)
    assert (fleet.overrides, len(fleet.ended())) == ([RIVAL], 1)


def test_fleet_that_becomes_unhealthy_before_the_act_is_left_alone() -> None:
    fleet = FakeFleet(incidents=lambda at: {"overload": "Too much."} if at.seconds >= 8 else {})

    assert "the verdict is overload" in refusal(LOSS, fleet)
    assert nothing_changed(fleet)


# Loss of an endpoint, and undoing


def test_endpoint_loss_drains_the_busiest_endpoint_for_the_time_and_gives_it_back() -> None:
    fleet = FakeFleet(endpoints=(an_endpoint("e1", in_flight=1), an_endpoint("e2", in_flight=3)))
    result, run = performed(LOSS, fleet)

    create = next(body for path, body in fleet.calls if path == "overrides/create")
    assert (create["verb"], create["target"], create["duration_s"]) == ("drain", "e2", 25)
    assert "interrupt" not in create
    assert str(create["reason"]).startswith("drill: endpoint-loss ")
    assert (fleet.overrides, len(fleet.ended())) == ([], 1)
    assert (run.acted_at_s, run.undone_at_s, run.last.at_s) == (10, 30, 45)
    assert result.held
    assert result.json()["objectives"] == {"chat ttft": "held"}


def test_interrupting_drill_asks_for_it() -> None:
    fleet = FakeFleet()
    performed(replace(LOSS, interrupt=True, endpoint="e1"), fleet)

    create = next(body for path, body in fleet.calls if path == "overrides/create")
    assert (create["target"], create["interrupt"]) == ("e1", True)


SHARED = (
    DrillEndpoint("a1", "a", "ready", in_flight=9, engine="gpu-1"),
    DrillEndpoint("b1", "b", "ready", in_flight=9, engine="gpu-1"),
    DrillEndpoint("a2", "a", "ready", in_flight=1),
    DrillEndpoint("a3", "a", "ready"),
)


def test_endpoint_loss_is_refused_if_another_pool_has_its_only_endpoint_on_the_same_engine() -> None:
    fleet = FakeFleet(endpoints=SHARED)
    for pool in (None, "a"):
        why = refusal(replace(LOSS, endpoint="a1", pool=pool), fleet)
        assert "b1 is the only serving endpoint of pool b, and a drain of a1 applies to the whole engine" in why
    assert "b1 is the only serving endpoint of pool b, so" in refusal(replace(LOSS, endpoint="b1"), fleet)
    assert nothing_changed(fleet)


def test_endpoint_loss_avoids_shared_engines_if_a_pool_would_be_empty_and_names_all_endpoints() -> None:
    sample = asyncio.run(FakeFleet(endpoints=SHARED).sample())

    assert LOSS.choose(sample).id == "a2"
    described = replace(LOSS, endpoint="a1", force=True).describe(sample)
    assert "drain a1 (pool a, 9 in flight) with b1 (pool b) on the same engine, for 20 s" in described


@pytest.mark.parametrize("moment_s", [10, 15, 30, 40])
def test_stopped_drill_undoes_its_act_at_once_and_counts_as_missed(moment_s: int) -> None:
    fleet = FakeFleet()
    result, run = performed(LOSS, fleet, stop_at_s=moment_s + 0.5)

    assert fleet.overrides == []
    assert len(fleet.ended()) == 1
    assert not result.held
    assert run.undone_at_s is not None
    assert run.undone_at_s <= moment_s + 2
    assert result.json()["stopped"] == "interrupted by SIGINT"


def test_drill_stopped_before_its_act_changes_nothing() -> None:
    fleet = FakeFleet()
    with pytest.raises(DrillRefused, match="nothing was changed"):
        performed(LOSS, fleet, stop_at_s=3)
    assert nothing_changed(fleet)


def test_override_whose_creation_got_no_response_is_found_and_ended() -> None:
    fleet = FakeFleet(lose_response=True)

    assert "did not respond" in refusal(LOSS, fleet)
    assert (fleet.overrides, len(fleet.ended())) == ([], 1)


def test_undo_is_repeated_until_the_gateway_responds() -> None:
    fleet = FakeFleet(failure=lambda at, _: "connection refused" if 28 <= at.seconds < 32 else None)
    result, _ = performed(LOSS, fleet)

    assert fleet.overrides == []
    assert result.undone.startswith("ended ovr_")


def test_drill_whose_act_could_not_be_undone_is_missed() -> None:
    fleet = FakeFleet(failure=lambda at, _: "the database did not respond" if at.seconds >= 28 else None)
    result, run = performed(LOSS, fleet)

    assert (result.in_force, result.held, run.stopped) == (True, False, False)
    assert result.undone.startswith("NOT ended by this command (the database did not respond)")
    assert "the act could not be undone" in next(result.lines())


@pytest.mark.parametrize(("drill", "ended_at_s"), [(LOSS, 14), (LOSS, 29), (START, 9), (START, 30)])
def test_drill_whose_override_another_operator_ends_stops_and_is_missed(drill: Any, ended_at_s: int) -> None:
    fleet = FakeFleet(scaling=SCALED, cold_start_s=100, tick=partial(ends_overrides, since_s=ended_at_s))
    result, run = performed(drill, fleet)

    assert (result.held, run.stopped_because) == (False, "the drill's override ended before its time")
    assert run.undone_at_s is not None
    assert run.undone_at_s <= ended_at_s + 6
    assert fleet.ended() == []


def test_drill_is_complete_if_only_the_response_to_its_end_was_lost() -> None:
    def fail_and_end(at: FakeFleet, path: str) -> str | None:
        if path != "overrides/end":
            return None
        at.overrides.clear()
        return "connection reset"

    result, run = performed(LOSS, FakeFleet(failure=fail_and_end))

    assert (result.held, run.stopped) == (True, False)


def test_gateway_that_is_gone_is_reported_and_its_override_expires() -> None:
    fleet = FakeFleet(
        down=lambda at: at.seconds >= 15, failure=lambda at, _: "connection refused" if at.seconds >= 15 else None
    )
    result, run = performed(LOSS, fleet)

    assert not result.held
    assert run.stopped_because == "no gateway has responded for 10 s"
    assert result.undone.startswith("NOT ended by this command (connection refused); it expires by itself within")
    fleet.advance(60)
    assert fleet.overrides == []


def test_failure_inside_the_drill_still_undoes_the_act() -> None:
    def broken(at: FakeFleet) -> dict[str, str]:
        assert at.seconds < 20, "a mistake in the drill"
        return {}

    fleet = FakeFleet(incidents=broken)
    with pytest.raises(AssertionError):
        performed(LOSS, fleet)
    assert (fleet.overrides, len(fleet.ended())) == ([], 1)


def test_missed_objective_is_reported_with_the_time_until_recovery() -> None:
    fleet = FakeFleet(good=lambda at: 50 if at.acting and at.seconds < 18 else 100)
    result, run = performed(LOSS, fleet)

    assert not result.held
    [verdict] = result.verdicts
    assert (verdict.objective, verdict.held) == ("chat ttft", False)
    # 8 of the 35 seconds at half, of 350 requests.
    assert verdict.measured == "88.57% of 350 requests"
    phases = run.phases()
    assert [round(each.seconds) for each in phases.values()] == [10, 20, 15]
    assert run.recovered_after_s([]) == 0
    assert result.facts["recovered after"] == "17 s"


def test_objective_that_is_missed_until_the_end_has_not_recovered() -> None:
    fleet = FakeFleet(good=lambda at: 50 if at.seconds >= 12 else 100)
    result, _ = performed(LOSS, fleet)

    assert result.facts["recovered after"] == "not recovered by the end"


def test_new_verdict_is_reported_with_its_time() -> None:
    fleet = FakeFleet(incidents=lambda at: {"overload": "Too much."} if at.seconds >= 16 else {})
    result, run = performed(LOSS, fleet)

    assert ("verdict overload: Too much.", 6.0) in [(each.text, each.at_s) for each in run.timeline_entries()]
    assert result.held


def test_restarted_gateway_makes_the_drill_missed() -> None:
    result, _ = performed(LOSS, FakeFleet(restarted=lambda at: at.seconds > 20))

    assert not result.held
    assert "restarted during the drill" in next(result.lines())


# Cold start


def test_cold_start_measures_from_the_raised_minimum_to_the_first_request_and_restores_the_count() -> None:
    fleet = FakeFleet(scaling=SCALED)
    result, _ = performed(START, fleet)

    create = next(body for path, body in fleet.calls if path == "overrides/create")
    assert (create["verb"], create["target"], create["endpoints"]) == ("scale", "p", 3)
    assert (result.held, result.verdicts[0].measured) == (True, "first request served after 21 s")
    assert (result.facts["ready after (s)"], result.facts["count restored after (s)"]) == (20.0, 0.0)
    assert fleet.overrides == []


@pytest.mark.parametrize(
    ("scaling", "pool", "why"),
    [
        ({}, None, "no pool is autoscaled"),
        (SCALED, "q", 'there is no pool "q"'),
        ({"p": ScalingLimits(desired=2, endpoints_max=2, cold_start_s=30)}, None, "which is the most"),
        ({**SCALED, "q": SCALED["p"]}, None, "several pools are autoscaled: p, q"),
    ],
)
def test_cold_start_is_refused_if_the_gateway_cannot_start_an_endpoint(
    scaling: dict[str, ScalingLimits], pool: str | None, why: str
) -> None:
    fleet = FakeFleet(scaling=scaling)

    assert why in refusal(replace(START, pool=pool), fleet)
    assert nothing_changed(fleet)


def test_slow_cold_start_is_missed_and_one_that_never_ends_is_undone() -> None:
    slow, _ = performed(START, FakeFleet(scaling=SCALED, cold_start_s=40))
    fleet = FakeFleet(scaling=SCALED, cold_start_s=10_000)
    never, _ = performed(START, fleet)

    assert [slow.verdicts[0].held, never.verdicts[0].held] == [False, False]
    assert never.verdicts[0].measured == "the endpoint was not ready in time"
    assert fleet.overrides == []


# OverloadDrill


class FakeTraffic:
    """Traffic of which every tenth request is rejected."""

    def __init__(self, fleet: FakeFleet) -> None:
        self.fleet = fleet
        self.load: AddedLoad | None = None
        self.stopped = self.waited = False
        self.error: str | None = None

    def __call__(self, load: AddedLoad, on_request: Callable[[LoadTestRequest], None]) -> "FakeTraffic":
        self.load = load
        for number in range(10):
            request = LoadTestRequest(number, 0, 1, 1, 0)
            request.outcome = LoadTestOutcome.HTTP_ERROR if number == 0 else LoadTestOutcome.COMPLETED
            if number < 2:
                request.refusals, request.retry_afters, request.retries = 1 + (number == 0), 1, 1
                request.code = "slow_down" if number == 0 else ""
            on_request(request)
        return self

    def stop(self) -> None:
        self.stopped = True

    async def ended(self) -> None:
        self.waited = True

    def is_over(self) -> bool:
        return True

    def problem(self) -> str | None:
        return self.error


def an_overload(fleet: FakeFleet, **more: Any) -> tuple[OverloadDrill, FakeTraffic]:
    traffic = FakeTraffic(fleet)
    drill = OverloadDrill(
        "drill",
        "batch",
        1.5,
        of_capacity=False,
        abort_below=0.8,
        before_s=10,
        for_s=20,
        after_s=10,
        force=False,
        send=traffic,
    )
    return replace(drill, **more), traffic


def test_overload_adds_the_missing_share_of_the_load_with_the_sizes_of_the_present_requests() -> None:
    fleet = FakeFleet()
    drill, traffic = an_overload(fleet)
    result, _ = performed(drill, fleet)

    assert traffic.load == AddedLoad(5.0, 20, 200, 50)
    create = next(body for path, body in fleet.calls if path == "overrides/create")
    assert (create["verb"], create["target"], create["requests_per_minute"]) == ("throttle", "drill", 600)
    assert (traffic.stopped, traffic.waited, fleet.overrides) == (True, True, [])
    assert result.held
    assert result.facts["rejections with Retry-After"] == "2 of 3"
    assert result.facts["completed on retry"] == "1 of 2"
    assert result.facts["not completed"] == {"slow_down": 1}


def test_overload_relative_to_capacity_uses_the_measured_load() -> None:
    fleet = FakeFleet()
    drill, traffic = an_overload(fleet, of_capacity=True)
    performed(drill, fleet)

    # 10 requests/s are half of the capacity, so 1.5 times the capacity are 30 requests/s.
    assert traffic.load is not None
    assert traffic.load.rate == 20.0


@pytest.mark.parametrize(
    ("fleet", "more", "why"),
    [
        (FakeFleet(), {"service_class": "chat"}, 'no class other than "chat" has objectives'),
        (FakeFleet(rate=0), {}, "no present load to multiply"),
        (FakeFleet(), {"tenant": "acme"}, 'tenant "acme" has sent 100 requests already'),
        (FakeFleet(rate=5_000), {}, "1000 is the limit; lower --load"),
    ],
)
def test_overload_is_refused(fleet: FakeFleet, more: dict[str, Any], why: str) -> None:
    drill, traffic = an_overload(fleet, **more)

    assert why in refusal(drill, fleet)
    assert (nothing_changed(fleet), traffic.load) == (True, None)


def test_overload_ends_when_a_real_class_falls_below_the_bound() -> None:
    fleet = FakeFleet(good=lambda at: 70 if at.acting else 100)
    drill, traffic = an_overload(fleet)
    result, run = performed(drill, fleet)

    assert run.stopped_because == "chat ttft fell to 70.0%, below --abort-below 80%"
    assert run.undone_at_s is not None
    assert run.undone_at_s <= 12
    assert (traffic.stopped, fleet.overrides, result.held) == (True, [], False)


def ends_overrides(at: FakeFleet, *, since_s: float) -> None:
    if at.seconds >= since_s:
        at.overrides.clear()


def test_overload_ends_when_another_operator_ends_its_override() -> None:
    fleet = FakeFleet(tick=partial(ends_overrides, since_s=14))
    drill, traffic = an_overload(fleet)
    result, run = performed(drill, fleet)

    assert run.stopped_because == "the drill's override ended before its time"
    assert traffic.stopped
    assert result.undone == "the override was not in force any more"


def test_overload_ends_when_its_traffic_fails_or_the_gateway_is_gone() -> None:
    fleet = FakeFleet()
    drill, traffic = an_overload(fleet)
    traffic.error = "the drill's traffic ended: refused"
    _, run = performed(drill, fleet)
    assert run.stopped_because == traffic.error

    fleet = FakeFleet(down=lambda at: at.seconds >= 14)
    drill, traffic = an_overload(fleet)
    _, run = performed(drill, fleet)
    assert run.stopped_because == "the gateway stopped responding"
    assert traffic.stopped


@pytest.mark.parametrize("for_s", [2, 20])
def test_overload_stops_if_the_watched_gateway_counts_none_of_its_requests(for_s: int) -> None:
    fleet = FakeFleet(counts_drill=False)
    drill, traffic = an_overload(fleet, for_s=for_s)
    result, run = performed(drill, fleet)

    assert 'the watched gateways have counted none of tenant "drill"; check that --target' in run.stopped_because
    assert (traffic.stopped, fleet.overrides, result.held) == (True, [], False)
    assert run.undone_at_s is not None
    assert run.undone_at_s <= 14


@pytest.mark.parametrize(("url", "variable"), [("http://elsewhere:1", ""), (None, "http://elsewhere:1")])
def test_overload_needs_a_target_if_the_admin_listener_does_not_come_from_the_configuration(
    url: str | None, variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "hg-operator")
    monkeypatch.setenv(ADMIN_URL_VARIABLE, variable)
    parser = argparse.ArgumentParser()
    drill_verb.add_arguments(parser)
    given = ("--url", url) if url else ()

    assert drill_verb.run(parser.parse_args(["overload", "--model", "m", "--class", "batch", *given])) == 2
    assert "refused: --target is missing" in capsys.readouterr().err


# Handover of a cell's scheduler


def test_cell_failover_measures_the_time_without_decisions() -> None:
    fleet = FakeFleet(cell=a_cell("g2"))
    result, _ = performed(FAILOVER, fleet)

    assert result.held
    assert result.json()["objectives"] == {
        "time without decisions": "held",
        "lost requests": "held",
        "chat ttft": "held",
    }
    assert result.facts["new scheduler"] == "g2"
    assert result.facts["without decisions (s)"] == pytest.approx(0.3, abs=0.03)
    [(_, body)] = [call for call in fleet.calls if call[0] == "cell/hand-over"]
    assert body == {"pause_s": 5, "reason": "drill: cell-failover"}


@pytest.mark.parametrize("lost_after_s", [0, 15])
def test_cell_failover_whose_response_is_lost_is_judged_by_the_epoch(lost_after_s: int) -> None:
    fleet = FakeFleet(cell=a_cell("g2"), lose_response=True, lost_after_s=lost_after_s)
    result, _ = performed(FAILOVER, fleet)

    assert result.held
    assert result.facts["new scheduler"] == "g2"
    assert result.facts["without decisions (s)"] == pytest.approx(0.3, abs=0.03)


def test_cell_failover_without_a_response_is_refused_if_the_scheduler_stays() -> None:
    why = "the gateway did not respond within 15 s"
    fleet = FakeFleet(
        cell=a_cell("g2"),
        failure=lambda _, path: why if path.startswith("cell/") else None,
        failure_kind=AdminResponseLost,
        lost_after_s=15,
    )

    assert refusal(FAILOVER, fleet) == f"{why}; g1 is still the scheduler (epoch 3)"
    assert fleet.seconds > 5 + 15


def test_cell_failover_without_a_response_or_a_successor_is_missed() -> None:
    fleet = FakeFleet(cell=a_cell("g2"), takeover_s=None, lose_response=True, lost_after_s=15)
    result, run = performed(FAILOVER, fleet)

    assert (result.held, result.verdicts[0].measured) == (False, "no scheduler decided again")
    assert any("the epoch will show whether g1 handed over" in text for _, text in run.timeline)


def test_cell_failover_without_a_successor_is_missed() -> None:
    result, _ = performed(FAILOVER, FakeFleet(cell=a_cell("g2"), takeover_s=None))

    assert result.verdicts[0].measured == "no scheduler decided again"
    assert not result.held


def test_cell_failover_that_loses_requests_is_missed() -> None:
    fleet = FakeFleet(cell=a_cell("g2"), lost=lambda at: 10 if at.handed_over_s is not None else 0)
    result, _ = performed(FAILOVER, fleet)

    assert [each.objective for each in result.verdicts if each.held is False] == ["lost requests"]


@pytest.mark.parametrize(
    ("fleet", "why"),
    [
        (FakeFleet(), "does not belong to a cell"),
        (FakeFleet(cell=a_cell()), "no other process that could take over"),
        (
            FakeFleet(cell=a_cell("g2"), failure=lambda _, path: "not yours" if path.startswith("cell/") else None),
            "not yours",
        ),
    ],
)
def test_cell_failover_is_refused(fleet: FakeFleet, why: str) -> None:
    assert why in refusal(FAILOVER, fleet)
    assert fleet.handed_over_s is None


def test_cell_failover_is_refused_by_other_members_with_the_address_of_the_scheduler() -> None:
    with pytest.raises(DrillRefused, match="g1 is not the cell's scheduler, but g2; use --url http://two"):
        FAILOVER.choose(asyncio.run(FakeFleet(cell=FOLLOWER).sample()))
