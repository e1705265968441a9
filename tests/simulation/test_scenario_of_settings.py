"""Does a scenario's file become the simulation that it means?"""

from pathlib import Path

import pytest

from headgate.compose.simulation import SCHEDULERS, scenario
from headgate.config.scenarios.load import parse
from headgate.model.units import SECOND
from headgate.simulation.engine.profile import PROFILES
from headgate.simulation.virtual.scenario import Crash, Scenario, Slow

FILE = """
pools:
  main: {engines: [tiny, {profile: tiny, kv_tokens: 8192, block_tokens: 32}], in_flight_max: 8}
traffic:
  - {rate: 5, for: 20s, classes: batch, tenants: {a: 1, b: 1}, prompt: 50:100, output: 10}
  - {rate: 5, shift: 30s, for: 10s, classes: long, tenants: c, prompt: 50, output: {median: 5, p95: 9, most: 20}}
"""


def made(*lines: str, seed: int = 0) -> Scenario:
    text = "\n".join([FILE, *lines])
    return scenario(parse(text, Path("a.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS), seed)


def test_everyone_who_asks_is_known_and_asks_at_its_time() -> None:
    whole = made()
    arrivals = list(whole.arrivals())

    assert [each.id for each in whole.policy.tenants] == ["a", "b", "c"]
    assert {each.tenant for each in arrivals} == {"a", "b", "c"}
    assert all(30 * SECOND <= each.at < 40 * SECOND for each in arrivals if each.tenant == "c")
    assert all(each.at < 20 * SECOND for each in arrivals if each.tenant != "c")
    assert whole.span_ns == 40 * SECOND


def test_the_duration_cuts_the_traffic_and_nothing_else() -> None:
    whole, cut = made(), made("duration: 10s")

    assert list(cut.arrivals()) == [each for each in whole.arrivals() if each.at < 10 * SECOND]
    assert cut.span_ns == 10 * SECOND


def test_traffic_is_the_same_at_each_call_and_another_one_for_another_seed() -> None:
    first, other = made(seed=1), made(seed=2)

    assert list(first.arrivals()) == list(first.arrivals())
    assert list(first.arrivals()) != list(other.arrivals())


def test_an_engine_is_its_profile_but_for_what_the_file_says() -> None:
    plain, smaller = (each.profile for each in made().engines)

    assert plain == PROFILES["tiny"]
    assert (smaller.name, smaller.step_ps, smaller.kv_blocks, smaller.block_tokens) == ("tiny", plain.step_ps, 256, 32)


def test_faults_that_are_drawn_depend_on_the_seed_and_those_that_are_written_do_not() -> None:
    faults = "faults: [{slow: main/1, at: 5s, for: 1s, speed: 0.25}, {random: {crash: 1}}]"
    [slow, crash], [same, other] = made(faults, seed=1).faults, made(faults, seed=2).faults

    assert slow == same == Slow("main/1", 5 * SECOND, SECOND, 250)
    assert isinstance(crash, Crash)
    assert crash.at <= 40 * SECOND
    assert crash != other


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_run_has_a_scheduler_of_its_own(name: str) -> None:
    simulated = made(f"scheduler: {name}")
    first, second = simulated.decider(), simulated.decider()

    assert first is not second
    assert first.next_wakeup() is None
