"""What differs when an engine composes a step while the one before it runs?"""

from headgate.model.units import Instant
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import Finished, FirstToken, Happening
from tests.simulation.plain_engine import Add, PlainEngine
from tests.simulation.workloads import a_profile, a_request, finish, played

# Every step takes 1,000 ns, whatever is in it.
STEADY = {"step_ps": 1_000_000, "prefill_token_ps": 0, "decode_sequence_ps": 0, "kv_token_ps": 0}


def an_engine(**changes: object) -> SimulatedEngine:
    return SimulatedEngine(a_profile(**STEADY | {"asynchronous": True} | changes))


def first_tokens(happened: list[Happening]) -> dict[str, int]:
    return {each.request_id: each.at for each in happened if isinstance(each, FirstToken)}


def test_what_comes_during_a_step_misses_the_next_one_too() -> None:
    times: list[int] = []
    for asynchronous in (False, True):
        engine = an_engine(asynchronous=asynchronous)
        engine.add(a_request("runs", output=10), Instant(0))
        engine.add(a_request("comes"), Instant(1_500))
        times.append(first_tokens(finish(engine))["comes"])

    assert times == [3_000, 4_000]


def test_an_idle_engine_starts_at_once() -> None:
    engine = an_engine()
    engine.add(a_request("r", output=1), Instant(700))

    assert first_tokens(finish(engine)) == {"r": 1_700}


def test_an_engine_that_has_run_dry_composes_the_next_step_when_it_starts() -> None:
    engine = an_engine()
    engine.add(a_request("ends", output=2), Instant(0))
    engine.add(a_request("comes", output=1), Instant(1_500))

    assert first_tokens(finish(engine))["comes"] == 3_000


def test_a_place_is_free_one_step_after_its_holder_has_ended() -> None:
    engine = an_engine(sequences_max=2)
    for name, output in (("short", 2), ("long", 9), ("waits", 1)):
        engine.add(a_request(name, output=output), Instant(0))

    happened = finish(engine)

    ended = {each.request_id: each.at for each in happened if isinstance(each, Finished)}
    assert ended["short"] == 2_000
    assert first_tokens(happened)["waits"] == 4_000


def test_an_idle_engine_holds_no_blocks() -> None:
    engine = an_engine()
    engine.add(a_request("r"), Instant(0))
    finish(engine)

    assert engine.state().kv_blocks_used == 0


def test_a_sequence_that_is_preempted_and_started_again_without_a_step_between_ends_once() -> None:
    # All that runs is preempted for blocks of one that has just ended, which are free when the step starts.
    profile = a_profile(
        **STEADY | {"step_ps": 99_999, "asynchronous": True},
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
    assert sorted(each.request_id for each in happened if isinstance(each, Finished)) == ["r0", "r1", "r2", "r4"]
