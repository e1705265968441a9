"""Does a scenario's file become the simulation that it means?"""

from itertools import combinations
from pathlib import Path

import pytest

from headgate.compose.simulation import SCHEDULERS, scenario, warnings
from headgate.config.scenarios.load import parse
from headgate.model.engine_profile import PROFILES
from headgate.model.tenant import Plan, Tenant
from headgate.model.units import SECOND
from headgate.simulation.virtual.faults import place_of
from headgate.simulation.virtual.scenario import Crash, Scenario, Slow
from headgate.simulation.workload.problem import Problem

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


def test_tenants_that_the_file_names_are_treated_as_it_says() -> None:
    whole = made("tenants: {b: {weight: 300}, b/c: {plan: free}}")

    assert whole.policy.tenants == (Tenant("b", weight=300), Tenant("b/c", plan=Plan.FREE), Tenant("a"), Tenant("c"))


def test_the_first_model_of_the_file_is_asked_for() -> None:
    assert made().model == "model"
    assert made("models: {big: main, small: main}").model == "big"


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


def test_faults_that_are_drawn_keep_out_of_the_way_of_all_others() -> None:
    short = "for_min: 1s, for_max: 2s"
    drawn, written = (f"{{random: {{slow: 3, crash: 1, {short}}}}}", "{crash: main/0, at: 1s, back_after: 39s}")
    faults = f"faults: [{drawn}, {written}, {drawn}]"
    for seed in range(20):
        places = [place_of(each) for each in made(faults, seed=seed).faults]

        assert len(places) == 9
        for one, other in combinations(places, 2):
            apart = one.at + one.lasts_ns < other.at or other.at + other.lasts_ns < one.at
            assert apart or one.endpoint_id != other.endpoint_id


def test_faults_are_not_drawn_before_their_engine_is_up() -> None:
    later = FILE.replace("[tiny", "[{profile: tiny, count: 3, starts_at: 20s, cold_start: 10s}")
    settings = parse(
        later + "faults: [{random: {hang: 4, for_max: 5s}}]",
        Path("a.yaml"),
        {},
        profiles=PROFILES,
        schedulers=SCHEDULERS,
    )
    faults = [each for seed in range(20) for each in scenario(settings, seed).faults]

    assert len(faults) == 80
    assert all(each.at > 30 * SECOND or each.endpoint_id == "main/3" for each in faults)


def test_faults_after_the_traffic_are_a_warning() -> None:
    late = "faults: [{crash: main, at: 1h, back_after: 1s}, {hang: main/1, at: 40s, for: 1s}, {random: {slow: 9}}]"

    assert warnings(made(late)) == (
        "crash of main/0 and 1 more at 3600 s: requests arrive only until 40 s; lower at",
        "hang of main/1 at 40 s: requests arrive only until 40 s; lower at",
    )
    assert warnings(made(late, "duration: 2s"))[1].endswith("until 2 s; lower at")
    assert warnings(made("faults: [{hang: main/1, at: 39s, for: 1h}]")) == ()


def test_engines_compose_their_steps_ahead_where_the_file_says_so() -> None:
    text = FILE.replace("[tiny", "[{profile: tiny, asynchronous: true}")
    settings = parse(text, Path("a.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS)

    assert [each.profile.asynchronous for each in scenario(settings, 0).engines] == [True, False]


def test_the_gateway_looks_as_often_as_the_file_says() -> None:
    often = made("probe_every: 2s", "scrape_every: 20ms", "progress_every: 1s")

    assert (often.probe_every_ns, often.scrape_every_ns) == (2 * SECOND, SECOND // 50)
    assert often.progress_every_ns == SECOND


NOBODY = "pools: {main: {engines: [tiny], in_flight_max: 8}}\ntraffic: [{classes: batch, "
TRACE = "trace: mine.csv, tenants: a, "


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            "rate: 5, prompt: 9, output: 9}]\nduration: 1ms",
            "at 5 a second none was drawn within 0.001 s; raise rate, or for or duration",
        ),
        (
            TRACE + "shift: 100s}]\nduration: 10s",
            (
                "the first would come after 100 s, and duration is 10 s; raise duration, or lower shift or raise "
                "speed_up of the traffic"
            ),
        ),
        (TRACE + "keep: 0.00001}]", "mine.csv has some, and keep 1e-05 keeps none of them; raise keep"),
        (TRACE + "start: 1h}]", "mine.csv has none from start on, as long as for says; lower start, or raise for"),
    ],
)
def test_where_nobody_asks_the_reason_is_told(tmp_path: Path, lines: str, why: str) -> None:
    (tmp_path / "mine.csv").write_text("at_s,prompt_tokens,output_tokens\n0,20,5\n1,20,5\n")
    settings = parse(NOBODY + lines, tmp_path / "a.yaml", {}, profiles=PROFILES, schedulers=SCHEDULERS)

    with pytest.raises(Problem) as caught:
        scenario(settings, 0).arrivals()
    assert str(caught.value) == f"no request arrives: {why}"


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_run_has_a_scheduler_of_its_own(name: str) -> None:
    simulated = made(f"scheduler: {name}")
    first, second = simulated.decider(), simulated.decider()

    assert first is not second
    assert first.next_wakeup() is None
