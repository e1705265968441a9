"""A simulated cell keeps its guarantees under faults, and the simulation detects broken code."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from headgate.hosts.cell.leader import leader, peers, roster
from headgate.hosts.cell.leader.election import Election
from headgate.hosts.cell.member import island, member, rules
from headgate.hosts.cell.protocol import link
from headgate.model.units import Duration, Instant
from testing.builds import IS_COMPILED, NEEDS_PURE_BUILD
from testing.cell_world.checks import Findings
from testing.cell_world.faults import HOSTILE
from testing.cell_world.world import World

SEEDS = 8
"""Number of seeds to run. `just sim-cell` runs thousands."""
BROKEN_SEEDS = 300
"""Number of seeds to search for one that detects broken code."""


def test_seeds_with_many_faults_violate_no_guarantee() -> None:
    findings = {seed: World(seed).run() for seed in range(1, SEEDS + 1)}

    assert [f"just sim-cell --seed {seed} --trace" for seed, each in findings.items() if each.violations] == []
    _check_that_much_went_wrong(list(findings.values()))


def test_seeds_with_hostile_faults_violate_no_guarantee() -> None:
    worlds = {seed: World(seed, hostile=True) for seed in range(1, SEEDS + 1)}
    findings = {seed: world.run() for seed, world in worlds.items()}

    assert [f"just sim-cell --seed {seed} --trace" for seed, each in findings.items() if each.violations] == []
    assert {fault.kind for world in worlds.values() for fault in world.faults} >= set(HOSTILE)


@pytest.mark.parametrize("first_seed", [1, 2], ids=["upgrade", "rollback"])
def test_cell_of_two_protocol_versions_violates_no_guarantee(first_seed: int) -> None:
    worlds = {seed: World(seed, mixed=True) for seed in range(first_seed, SEEDS + 1, 2)}
    findings = {seed: world.run() for seed, world in worlds.items()}

    assert {seed: each.violations for seed, each in findings.items() if each.violations} == {}
    assert any(len(world.versions_led) == 2 for world in worlds.values()), "no takeover between the two versions"


def _check_that_much_went_wrong(findings: list[Findings]) -> None:
    assert sum(each.islands for each in findings) > 6
    assert sum(each.epochs for each in findings) > 15
    ended = [story.ended for each in findings for story in each.traces.values()]
    assert 2 * ended.count("completed") > len(ended)
    assert max(each.worst_percent for each in findings) > 100


@pytest.mark.parametrize("seed", [2900, 6517, 8696])
def test_regression_seeds_show_no_violation(seed: int) -> None:
    assert World(seed).run().violations == []


@pytest.mark.parametrize("seed", [271, 348])
def test_regression_seeds_with_hostile_faults_show_no_violation(seed: int) -> None:
    assert World(seed, hostile=True).run().violations == []


def trace_of(seed: int) -> str:
    lines: list[str] = []
    World(seed, told=lines.append).run()
    return "\n".join(lines)


def test_seed_reproduces_the_same_trace() -> None:
    assert trace_of(7) == trace_of(7)


@pytest.mark.process
def test_trace_does_not_depend_on_the_hash_seed() -> None:
    script = "from tests.hosts.cell.test_simulation import *; print(hashlib.sha256(trace_of(11).encode()).hexdigest())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }

    assert digests == {hashlib.sha256(trace_of(11).encode()).hexdigest()}


# These patches break the state machines on purpose, to prove that the simulation detects such bugs.


def start_any_grant(patch: pytest.MonkeyPatch) -> None:
    real = member.Member._apply_grant
    patch.setattr(member.Member, "_apply_grant", lambda self, granted, _, now: real(self, granted, Duration(0), now))


def follow_anybody(patch: pytest.MonkeyPatch) -> None:
    def binds(self: member.Member, epoch: object, now: Instant) -> bool:
        if epoch != self.followed_epoch:
            self._connection.follow(epoch)
            self._authority.restart_session(now)
        return True

    patch.setattr(member.Member, "_follows", binds)


def believe_in_the_lease_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "holds", lambda self, now: self.epoch)


def never_send_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(link.Outbound, "resend_at", lambda self: None)


def take_in_repetitions(patch: pytest.MonkeyPatch) -> None:
    def take(self: link.Inbound[object], first: int, messages: object) -> list[object]:
        new = [(number, age_ns, heard) for number, (age_ns, heard) in enumerate(messages, first)]
        self.last_received = max([self.last_received, *(number for number, _, _ in new)])
        return new

    patch.setattr(link.Inbound, "accept", take)


def keep_no_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(roster.MemberRoster, "places_left", lambda self, endpoint, absent, sharing: endpoint.in_flight_max)


def miss_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(peers.Peer, "island_at", lambda self: Instant(2**62))


def take_all_as_an_island(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(island, "island_endpoint", lambda share, endpoint: endpoint)


def forget_what_runs_as_an_island(patch: pytest.MonkeyPatch) -> None:
    real = island.IslandAuthority.begin

    def begin(self: island.IslandAuthority, rules, endpoints, requests, now):
        return real(self, rules, endpoints, [each for each in requests if not each.running], now)

    patch.setattr(island.IslandAuthority, "begin", begin)


def wait_for_no_reports(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leader.Leader, "_end_gathering_if_complete", lambda self, now: self.gathering and self._begin(now))


def cover_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leader.Leader, "snapshot_stored", lambda self, at, now: None)


def go_by_rules_when_they_are_read(patch: pytest.MonkeyPatch) -> None:
    real = member.Member.stage
    patch.setattr(
        member.Member, "stage", lambda self, policy_hash, now: real(self, policy_hash, now) or self.rules.agree()
    )


def ask_nobody_before_rules_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leader.Leader, "all_have_policy", lambda self, policy_hash: not self.gathering)


def tell_nobody_of_new_rules(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules.MemberRules, "apply_staged", lambda self: [])


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@pytest.mark.parametrize(
    ("broken", "seed"),
    [
        (start_any_grant, 325),
        (follow_anybody, 21),
        (believe_in_the_lease_for_ever, 74),
        (never_send_again, 1),
        (take_in_repetitions, 7),
        (keep_no_share, 7),
        (miss_nobody, 36),
        (take_all_as_an_island, 1),
        (forget_what_runs_as_an_island, 3),
        (wait_for_no_reports, 1),
        (cover_nothing, 1),
        (go_by_rules_when_they_are_read, 5),
        (ask_nobody_before_rules_change, 18),
        (tell_nobody_of_new_rules, 5),
    ],
)
def test_simulation_detects_a_broken_state_machine(
    broken: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`seed` was the first to detect the bug. Other seeds are tried in case the simulation has changed since then."""
    broken(monkeypatch)

    assert any(World(each).run().violations for each in (seed, *range(1, BROKEN_SEEDS)))
