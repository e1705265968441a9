"""A cell keeps its guarantees if a process or a second cell starts with a name that is in use."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from headgate.hosts.cell.protocol import member_names as protocol_names
from headgate.hosts.cell.protocol.member_names import NAME_LEASE_NS, NAME_POLL_NS, NameAnswer, NameClaim, NameEntry
from headgate.model.units import SECOND, Duration, Instant
from testing.cell_world import member_names
from testing.cell_world.checks import Findings
from testing.cell_world.faults import ALL_PROCESSES, DUPLICATES, SCHEDULER, STORE, Fault, Kind
from testing.cell_world.world import World

SEEDS = 6
"""Number of seeds to run. `just sim-cell` runs hundreds of the same kind."""
COPY, COPY_WITH_A_NAME_OF_OURS, FOREIGN, FOREIGN_WITH_A_NAME_OF_OURS = range(4)
TWIN = "g0 (twin)"


@dataclass(frozen=True, slots=True)
class Run:
    findings: Findings
    lines: list[str]

    def said(self, who: str, what: str) -> list[float]:
        """Returns the times in seconds of this process's trace lines that contain the text."""
        return [float(line.split()[0]) for line in self.lines if line[12:].startswith(who) and what in line]

    def requests_of(self, who: str) -> list[str | None]:
        return [story.ended for story in self.findings.traces.values() if story.member == who]


def a_fault(kind: Kind, target: str, start_s: float, end_s: float, degree: int = 0) -> Fault:
    return Fault(kind, target, Instant(int(start_s * SECOND)), Duration(int((end_s - start_s) * SECOND)), degree)


def run(*faults: Fault, seed: int = 1) -> Run:
    lines: list[str] = []
    return Run(World(seed, doubles=True, faults=list(faults), told=lines.append).run(), lines)


def test_second_process_with_the_same_name_does_not_start_and_the_first_keeps_serving() -> None:
    seen = run(a_fault(Kind.TWIN, "g0", 2, 7))

    assert seen.findings.violations == []
    assert [2 < moment < 3 for moment in seen.said(TWIN, "does not start")] == [True]
    assert seen.requests_of(TWIN) == []
    assert "completed" in seen.requests_of("g0")
    assert seen.said("g0", "leaves") == []


def test_killed_process_rejoins_within_one_lease() -> None:
    seen = run(a_fault(Kind.CRASH, "g0", 3, 3.1))
    [_, again] = seen.said("g0 ", "starts, life")

    assert seen.findings.violations == []
    assert 3.1 < again <= 3.1 + (NAME_LEASE_NS + NAME_POLL_NS) / SECOND


def test_process_restarts_immediately_after_a_clean_exit() -> None:
    seen = run(a_fault(Kind.RESTART, "g0", 3, 5))
    [_, again] = seen.said("g0 ", "starts, life")
    [left] = seen.said("g0 ", "has left")

    assert seen.findings.violations == []
    assert again - left < 2 * NAME_POLL_NS / SECOND


def test_running_process_keeps_its_name_if_the_store_clock_moves_backwards() -> None:
    seen = run(a_fault(Kind.CLOCK_STEP, STORE, 3.01, 7, -1), a_fault(Kind.TWIN, "g0", 3.02, 6.5))

    assert seen.findings.violations == []
    assert seen.requests_of(TWIN) == []
    assert len(seen.said(TWIN, "does not start")) == 1


def test_killed_process_regains_its_name_if_the_store_clock_moves_backwards() -> None:
    seen = run(a_fault(Kind.CRASH, "g0", 3, 3.3), a_fault(Kind.CLOCK_STEP, STORE, 3.5, 7, -1))

    assert seen.findings.violations == []
    assert seen.said("g0 ", "does not start") == []
    assert len(seen.said("g0 ", "starts, life")) == 2


TWO_WAIT_AND_THE_CLOCK_MOVES_BACK = [
    a_fault(Kind.CRASH, "g0", 3, 3.1),
    a_fault(Kind.TWIN, "g0", 3.2, 7.7),
    a_fault(Kind.CLOCK_STEP, STORE, 3.6, 7.8, -1),
]
LAST_RENEWAL_ARRIVES_LATE = [a_fault(Kind.DELAY, "g0", 2.35, 2.55, 700), a_fault(Kind.CRASH, "g0", 2.7, 2.8)]


def test_one_of_two_waiting_processes_gets_the_name_after_the_store_clock_moves_backwards() -> None:
    # The store reports the corrected entry to one of the two processes. The other sees only a later expiry.
    seen = run(*TWO_WAIT_AND_THE_CLOCK_MOVES_BACK)
    [_, again] = seen.said("g0 ", "starts, life")
    [refused] = seen.said(TWIN, "does not start")

    assert seen.findings.violations == []
    assert 3.6 + NAME_LEASE_NS / SECOND < again < refused


@pytest.mark.parametrize(
    "faults",
    [LAST_RENEWAL_ARRIVES_LATE, [a_fault(Kind.DELAY, "g0", 2, 3.1, 700), a_fault(Kind.CRASH, "g0", 3.1, 3.2)]],
)
def test_killed_process_restarts_if_its_last_renewal_arrives_late(faults: list[Fault]) -> None:
    seen = run(*faults)
    [_, again] = seen.said("g0 ", "starts, life")

    assert seen.findings.violations == []
    assert seen.said("g0 ", "does not start") == []
    assert again > faults[-1].over / SECOND + NAME_LEASE_NS / SECOND


def test_process_waits_one_more_lease_if_another_process_gets_its_name_and_is_killed() -> None:
    seen = run(a_fault(Kind.CRASH, "g0", 3, 3.19), a_fault(Kind.TWIN, "g0", 3.15, 4.7))
    [twin] = seen.said(TWIN, "starts, life")
    [_, again] = seen.said("g0  ", "starts, life")

    assert seen.findings.violations == []
    assert NAME_LEASE_NS < (again - twin) * SECOND <= member_names.WAIT_NS_MAX


def test_one_of_two_processes_leaves_if_the_store_has_an_entry_from_a_third() -> None:
    # When the store resumes, it receives the last renewal from a killed process.
    outage = a_fault(Kind.STORE_PAUSE, STORE, 2.8, 4.6)
    seen = run(outage, a_fault(Kind.CRASH, "g0", 3.4, 3.6), a_fault(Kind.TWIN, "g0", 3.8, 7.9))
    [left] = seen.said("g0", "leaves: another process has the name g0")

    assert seen.findings.violations == []
    assert left > 4.6 + NAME_LEASE_NS / SECOND


def test_one_of_two_processes_started_during_a_store_outage_leaves() -> None:
    seen = run(a_fault(Kind.STORE_EMPTY, STORE, 2, 3), a_fault(Kind.TWIN, "g0", 2.2, 5.2))

    assert seen.findings.violations == []
    assert seen.findings.duplicates == 1
    assert len(seen.said("g0", "leaves: another process has the name g0")) == 1


def test_process_rejoins_after_losing_its_name_to_a_killed_process() -> None:
    killed = 6.05
    seen = run(a_fault(Kind.PAUSE, "g0", 2, 5.4), a_fault(Kind.TWIN, "g0", 2.1, killed))
    [left] = seen.said("g0 ", "leaves")
    [*_, again] = seen.said("g0 ", "starts, life")

    assert seen.findings.violations == []
    assert killed < left < again


@pytest.mark.parametrize("degree", [COPY, COPY_WITH_A_NAME_OF_OURS, FOREIGN, FOREIGN_WITH_A_NAME_OF_OURS])
def test_second_cell_with_the_same_name_violates_no_guarantee(degree: int) -> None:
    second = a_fault(Kind.SECOND_CELL, ALL_PROCESSES, 2, 7, degree)
    runs = [run(second, a_fault(Kind.CRASH, SCHEDULER, 4, 5), seed=seed) for seed in (1, 2, 3, 4)]

    assert [seen.findings.violations for seen in runs] == [[]] * 4
    assert any(seen.said("h", "is the scheduler") for seen in runs)
    refused = [len(seen.said("g0 (of the second cell)", "does not start")) for seen in runs]
    assert refused == ([1] * 4 if degree % 2 else [0] * 4)


def test_seeds_with_hostile_faults_and_duplicate_names_violate_no_guarantee() -> None:
    worlds = {seed: World(seed, hostile=True, doubles=True) for seed in range(1, SEEDS + 1)}
    findings = {seed: world.run() for seed, world in worlds.items()}

    assert [f"just sim-cell --seed {seed} --trace" for seed, each in findings.items() if each.violations] == []
    assert {fault.kind for world in worlds.values() for fault in world.faults} >= set(DUPLICATES)


@pytest.mark.parametrize(
    "seed", [210, 401, 1075, 1118, 1330, 1850, 1991, 2191, 2417, 3287, 3415, 3599, 4230, 7080, 8789, 9027, 9278]
)
def test_regression_seeds_with_duplicate_names_show_no_violation(seed: int) -> None:
    assert World(seed, hostile=True, doubles=True).run().violations == []


# These patches break the naming rules on purpose, to prove that the simulation detects a broken rule.


def give_names_to_anybody(patch: pytest.MonkeyPatch) -> None:
    real = member_names.claim_name
    patch.setattr(member_names, "claim_name", lambda _, *claim: real(None, *claim))


def give_names_away_when_the_clock_is_put_back(patch: pytest.MonkeyPatch) -> None:
    real = member_names.claim_name

    def claimed_name(entry: NameEntry | None, incarnation: str, lasts_ns: Duration, now: Instant) -> object:
        outlasts = entry is not None and entry.expires > now + 2 * lasts_ns
        return real(None if outlasts else entry, incarnation, lasts_ns, now)

    patch.setattr(member_names, "claim_name", claimed_name)


def refuse_whoever_finds_an_entry(patch: pytest.MonkeyPatch) -> None:
    def answered(self: NameClaim, answer: NameAnswer) -> bool:
        self.is_held, self.is_taken = not answer.holder, bool(answer.holder)
        return self.is_held

    patch.setattr(NameClaim, "apply_answer", answered)


def refuse_nobody(patch: pytest.MonkeyPatch) -> None:
    def answered(self: NameClaim, answer: NameAnswer) -> bool:
        self.is_held = not answer.holder
        return self.is_held

    patch.setattr(NameClaim, "apply_answer", answered)


def refuse_after_one_extension(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol_names, "RENEWALS_SEEN_MIN", 1)


def wait_for_two_leases(patch: pytest.MonkeyPatch) -> None:
    real = member_names.claim_name

    def claimed_name(entry: NameEntry | None, incarnation: str, lasts_ns: Duration, now: Instant) -> object:
        return real(entry, incarnation, Duration(2 * lasts_ns), now)

    patch.setattr(member_names, "claim_name", claimed_name)


@pytest.mark.parametrize(
    ("broken", "faults"),
    [
        (give_names_to_anybody, [a_fault(Kind.TWIN, "g0", 2, 7)]),
        (
            give_names_away_when_the_clock_is_put_back,
            [a_fault(Kind.CLOCK_STEP, STORE, 3.01, 7, -1), a_fault(Kind.TWIN, "g0", 3.02, 6.5)],
        ),
        (refuse_whoever_finds_an_entry, [a_fault(Kind.CRASH, "g0", 3, 3.1)]),
        (refuse_nobody, [a_fault(Kind.STORE_EMPTY, STORE, 2, 3), a_fault(Kind.TWIN, "g0", 2.2, 6)]),
        (refuse_after_one_extension, TWO_WAIT_AND_THE_CLOCK_MOVES_BACK),
        (refuse_after_one_extension, LAST_RENEWAL_ARRIVES_LATE),
        (wait_for_two_leases, [a_fault(Kind.CRASH, "g0", 3, 3.1)]),
    ],
)
def test_simulation_detects_a_broken_naming_rule(
    broken: Callable[[pytest.MonkeyPatch], None], faults: list[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)

    assert run(*faults).findings.violations
