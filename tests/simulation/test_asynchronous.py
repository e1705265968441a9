"""Tests for asynchronous scheduling, in which an engine composes a step while the previous one is running."""

from headgate.model.units import Instant
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import EngineEvent, FirstTokenGenerated, SequenceFinished
from tests.simulation.plain_engine import Add, PlainEngine
from tests.simulation.workloads import a_profile, a_request, finish, played

# Every step takes 1,000 ns, regardless of its batch.
STEADY = {"step_ps": 1_000_000, "prefill_token_ps": 0, "decode_sequence_ps": 0, "kv_token_ps": 0}


def an_engine(**changes: object) -> SimulatedEngine:
    return SimulatedEngine(a_profile(**STEADY | {"async_scheduling": True} | changes))


def first_tokens(happened: list[EngineEvent]) -> dict[str, int]:
    return {each.request_id: each.at for each in happened if isinstance(each, FirstTokenGenerated)}


def test_request_arriving_during_a_step_also_misses_the_next_one() -> None:
    times: list[int] = []
    for asynchronous in (False, True):
        engine = an_engine(async_scheduling=asynchronous)
        engine.add(a_request("runs", output=10), Instant(0))
        engine.add(a_request("comes"), Instant(1_500))
        times.append(first_tokens(finish(engine))["comes"])

    assert times == [3_000, 4_000]


def test_idle_engine_starts_immediately() -> None:
    engine = an_engine()
    engine.add(a_request("r", output=1), Instant(700))

    assert first_tokens(finish(engine)) == {"r": 1_700}


def test_engine_composes_the_next_step_at_its_start_if_nothing_is_running() -> None:
    engine = an_engine()
    engine.add(a_request("ends", output=2), Instant(0))
    engine.add(a_request("comes", output=1), Instant(1_500))

    assert first_tokens(finish(engine))["comes"] == 3_000


def test_slot_is_free_one_step_after_its_sequence_ends() -> None:
    engine = an_engine(sequences_max=2)
    for name, output in (("short", 2), ("long", 9), ("waits", 1)):
        engine.add(a_request(name, output=output), Instant(0))

    happened = finish(engine)

    ended = {each.request_id: each.at for each in happened if isinstance(each, SequenceFinished)}
    assert ended["short"] == 2_000
    assert first_tokens(happened)["waits"] == 4_000


def test_idle_engine_uses_no_blocks() -> None:
    engine = an_engine()
    engine.add(a_request("r"), Instant(0))
    finish(engine)

    assert engine.state().kv_blocks_used == 0


def test_sequence_preempted_and_restarted_before_the_next_step_ends_once() -> None:
    # All running sequences are preempted to free blocks. The blocks of a sequence that has just ended become free only
    # when the step starts.
    profile = a_profile(
        **STEADY | {"step_ps": 99_999, "async_scheduling": True},
        chunk_tokens=7,
        sequences_max=2,
        kv_blocks=13,
        block_tokens=3,
    )
    requests = [
        a_request("r0", prompt=1, output=0),
        a_request("r1", prompt=8, output=10, prefix=(2000, 2001)),
        a_request("r2", prompt=18, output=5, prefix=(3000, 3001, 3002, 3003)),
        a_request("r4", prompt=1, output=2),
    ]
    script = [Add(Instant(0), each) for each in requests]

    happened = played(SimulatedEngine(profile), script)

    assert happened == PlainEngine(profile).run(script)
    assert sorted(each.request_id for each in happened if isinstance(each, SequenceFinished)) == [
        "r0",
        "r1",
        "r2",
        "r4",
    ]
