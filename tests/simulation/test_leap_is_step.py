"""Tests that the simulated engine, which skips steps, matches a step-by-step engine."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.model.engine_profile import EngineProfile
from headgate.model.units import Instant
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import SequenceFinished, StepFinished
from tests.simulation.plain_engine import Entry, PlainEngine
from tests.simulation.workloads import PROFILES, a_profile, a_request, finish, played, scripts, tell


@settings(max_examples=4 * settings.default.max_examples)
@given(PROFILES, scripts())
def test_engine_matches_the_reference_model(profile: EngineProfile, script: list[Entry]) -> None:
    engine = SimulatedEngine(profile)
    plain = PlainEngine(profile)

    assert played(engine, script) == plain.run(script)
    assert engine.state().steps == plain.steps
    assert engine.state().kv_blocks_used == 0
    assert len(plain.free) == profile.kv_blocks


DISTURBANCES = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 700, 2_500, 30_000]), st.sampled_from(["look", "stall", "slow", "fast", "normal"])
    ),
    max_size=12,
)


def disturb(engine: SimulatedEngine, now: Instant, kind: str) -> object:
    match kind:
        case "stall":
            engine.stall(now, Instant(now + 5_000))
        case "slow":
            engine.change_speed(now, 300)
        case "fast":
            engine.change_speed(now, 7_000)
        case "normal":
            engine.change_speed(now, 1_000)
        case _:
            happened = [each for each in engine.advance(now) if not isinstance(each, StepFinished)]
            ids = [a_request(f"r{each}").request_id for each in range(14)]
            of_each = [(engine.generated_tokens(each), engine.cost_of(each)) for each in ids]
            return happened, engine.state(), of_each, engine.generated_by_request()
    return None


@settings(max_examples=4 * settings.default.max_examples)
@given(PROFILES, scripts(), DISTURBANCES)
def test_skipping_and_single_steps_agree_at_any_time(
    profile: EngineProfile, script: list[Entry], disturbances: list[tuple[int, str]]
) -> None:
    def seen(engine: SimulatedEngine) -> list[object]:
        found: list[object] = []
        entries = list(script)
        now = 0
        for wait, kind in disturbances:
            now += wait
            while entries and entries[0].at <= now:
                tell(engine, entries.pop(0))
            found.append(disturb(engine, Instant(now), kind))
            assert engine.state().kv_blocks_used <= profile.kv_blocks
        for entry in entries:
            tell(engine, entry)
        rest = [each for each in finish(engine) if not isinstance(each, StepFinished)]
        return [*found, rest, engine.state()]

    assert seen(SimulatedEngine(profile)) == seen(SimulatedEngine(profile, by_step=True))


@given(PROFILES, scripts())
def test_each_step_reports_the_requests_that_got_a_token(profile: EngineProfile, script: list[Entry]) -> None:
    engine = SimulatedEngine(profile, by_step=True)
    for entry in script:
        tell(engine, entry)
    tokens: dict[str, int] = {}
    for happening in finish(engine):
        match happening:
            case StepFinished(_, _, request_ids):
                for each in request_ids:
                    tokens[each] = tokens.get(each, 0) + 1
            case _:
                pass
    left = {entry.request_id for entry in script if not hasattr(entry, "request")}
    wanted = {entry.request.request_id: entry.request.output_tokens for entry in script if hasattr(entry, "request")}

    assert {each: count for each, count in wanted.items() if count and each not in left} == {
        each: count for each, count in tokens.items() if each not in left
    }


def test_long_response_requires_two_advances() -> None:
    engine = SimulatedEngine(a_profile(context_tokens=60))
    engine.add(a_request("r", prompt=4, output=50), Instant(0))
    first = engine.next_instant()
    assert first is not None
    engine.advance(first)

    last = engine.next_instant()
    assert last is not None
    engine.advance(last)

    assert engine.next_instant() is None
    assert engine.state().steps == 50


def test_step_ending_now_has_not_allocated_the_next_steps_blocks() -> None:
    profile = a_profile(step_ps=1_000_000, prefill_token_ps=0, decode_sequence_ps=0, kv_token_ps=0, attention_ps=0)
    for at in range(1_000, 40_001, 1_000):
        used: list[int] = []
        for by_step in (False, True):
            engine = SimulatedEngine(profile, by_step=by_step)
            engine.add(a_request("r", prompt=2, output=30), Instant(0))
            engine.advance(Instant(at))
            used.append(engine.state().kv_blocks_used)
        assert used[0] == used[1], at


@given(PROFILES, scripts())
def test_time_spent_on_requests_sums_to_the_engine_work(profile: EngineProfile, script: list[Entry]) -> None:
    whole = [entry for entry in script if hasattr(entry, "request")]
    engine = SimulatedEngine(profile)

    spent = [each.cost.worked_ps for each in played(engine, whole) if isinstance(each, SequenceFinished)]

    # Each step's fixed cost is divided evenly in whole picoseconds, so a step can lose less than one picosecond per
    # sequence.
    lost = engine.state().worked_ps - sum(spent)
    assert 0 <= lost < engine.state().steps * profile.sequences_max
