"""Tests that the engine loop schedules as vLLM does, with small cases computed by hand.

In the test profile a step takes 1,000 ns, plus 10 ns per prompt token, 100 ns per decoding sequence and 1 ns per token
read. A block contains 4 tokens.
"""

import pytest
from inline_snapshot import snapshot

from headgate.model.units import Instant
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import (
    FirstTokenGenerated,
    SequenceCost,
    SequenceFinished,
    SequencePreempted,
    StepFinished,
)
from tests.simulation.workloads import a_profile, a_request, finish


def at(nanoseconds: int) -> Instant:
    return Instant(nanoseconds)


def instants(engine: SimulatedEngine) -> dict[str, tuple[int, ...]]:
    """Returns the times of each request's first and last token."""
    found: dict[str, tuple[int, ...]] = {}
    for happening in finish(engine):
        if isinstance(happening, FirstTokenGenerated | SequenceFinished):
            found[happening.request_id] = (*found.get(happening.request_id, ()), happening.at)
    return found


def test_request_takes_one_prefill_step_and_one_step_per_further_token() -> None:
    engine = SimulatedEngine(a_profile())
    engine.add(a_request("r", prompt=4, output=3), at(0))

    # 1,000 + 4·10 for the prompt, then 1,000 + 100 + 5 tokens read and 1,000 + 100 + 6 tokens read.
    assert instants(engine) == {"r": (1_040, 1_040 + 1_105 + 1_106)}


def test_finished_event_describes_the_request() -> None:
    engine = SimulatedEngine(a_profile())
    engine.add(a_request("r", prompt=4, output=1), at(50))

    assert finish(engine)[-1] == snapshot(
        SequenceFinished(
            request_id="r",
            at=1090,
            prompt_tokens=4,
            output_tokens=1,
            cached_tokens=0,
            arrived_at=50,
            started_at=50,
            first_token_at=1090,
            preemptions=0,
            cost=SequenceCost(prefilled_tokens=4, worked_ps=1_040_000),
        )
    )


def test_long_prompt_is_computed_in_chunks() -> None:
    engine = SimulatedEngine(a_profile(chunk_tokens=8, attention_ps=2_000))
    engine.add(a_request("r", prompt=20, output=1), at(0))

    # The three steps compute 8, 8 and 4 tokens. They attend to 8·(0+4), 8·(8+4) and 4·(16+2) token pairs at 2 ns each.
    assert instants(engine) == {"r": (3_000 + 200 + 2 * (32 + 96 + 72),) * 2}


def test_requests_arriving_together_start_together() -> None:
    engine = SimulatedEngine(a_profile())
    for name in "abc":
        engine.add(a_request(name, prompt=4, output=1), at(0))

    assert instants(engine) == dict.fromkeys("abc", (1_120, 1_120))


def test_arrival_waits_for_the_running_step() -> None:
    engine = SimulatedEngine(a_profile())
    engine.add(a_request("a", prompt=4, output=3), at(0))
    engine.add(a_request("b", prompt=4, output=1), at(1))

    # The second step contains one decoding sequence (100 + 5 tokens read) and a prompt of 4 tokens.
    assert instants(engine)["b"] == (1_040 + 1_145,) * 2


def test_decoding_sequences_and_a_prompt_share_the_step_token_limit() -> None:
    engine = SimulatedEngine(a_profile(chunk_tokens=8))
    engine.add(a_request("a", prompt=4, output=4), at(0))
    engine.add(a_request("b", prompt=8, output=1), at(1))

    # While one sequence decodes, 7 of the 8 prompt tokens fit. The last one is computed a step later.
    assert instants(engine)["b"] == (1_040 + (1_105 + 70) + (1_106 + 10),) * 2


def test_engine_runs_at_most_sequences_max_sequences() -> None:
    engine = SimulatedEngine(a_profile(sequences_max=2))
    for name in "abc":
        engine.add(a_request(name, prompt=4, output=2), at(0))
    engine.advance(at(1))

    assert (engine.state().running, engine.state().waiting) == (2, 1)
    assert engine.advance(at(10_000))[-1] == snapshot(
        SequenceFinished(
            request_id="c",
            at=4435,
            prompt_tokens=4,
            output_tokens=2,
            cached_tokens=0,
            arrived_at=0,
            started_at=2290,
            first_token_at=3330,
            preemptions=0,
            cost=SequenceCost(prefilled_tokens=4, worked_ps=2_145_000),
        )
    )


def test_waiting_request_starts_only_if_its_complete_prompt_fits() -> None:
    engine = SimulatedEngine(a_profile(kv_blocks=8))
    engine.add(a_request("a", prompt=16, output=2), at(0))
    engine.add(a_request("b", prompt=16, output=2), at(0))
    engine.add(a_request("c", prompt=4, output=2), at(0))
    engine.advance(at(2_000))

    # The first request uses 5 of 8 blocks. The third would fit, but the second is ahead of it.
    assert (engine.state().running, engine.state().waiting) == (1, 2)


def test_newest_sequence_is_preempted_when_blocks_run_out_and_resumes_later() -> None:
    engine = SimulatedEngine(a_profile(kv_blocks=8, chunk_tokens=32))
    engine.add(a_request("a", prompt=15, output=6), at(0))
    engine.add(a_request("b", prompt=15, output=6), at(0))
    happened = finish(engine)

    preempted = [each for each in happened if isinstance(each, SequencePreempted)]
    ended = {each.request_id: each for each in happened if isinstance(each, SequenceFinished)}
    # Each 16th token fits in the sequence's 4 blocks. The 17th needs a fifth block, and none is free.
    assert preempted == [SequencePreempted(a_request("b").request_id, at(1_300 + 1_232))]
    assert (ended["a"].output_tokens, ended["b"].output_tokens) == (6, 6)
    assert ended["b"].preemptions == 1
    assert engine.state().preemptions == 1


def test_preempted_sequence_reuses_its_cached_blocks() -> None:
    def ends(*, prefix_cache: bool) -> int:
        engine = SimulatedEngine(a_profile(kv_blocks=8, chunk_tokens=32, prefix_cache=prefix_cache))
        engine.add(a_request("a", prompt=15, output=6), at(0))
        engine.add(a_request("b", prompt=15, output=6), at(0))
        return finish(engine)[-1].at

    # The other sequence took one of the four blocks. The remaining three are not recomputed.
    assert ends(prefix_cache=False) - ends(prefix_cache=True) == 12 * 10


def test_shared_prefix_is_not_computed_again() -> None:
    engine = SimulatedEngine(a_profile())
    engine.add(a_request("a", prompt=12, output=1, prefix=(1, 2, 3)), at(0))
    finish(engine)
    engine.add(a_request("b", prompt=14, output=1, prefix=(1, 2, 9)), at(10_000))

    assert finish(engine)[-1].at == 10_000 + 1_000 + 6 * 10
    assert (engine.state().prefix_queried_tokens, engine.state().prefix_hit_tokens) == (26, 8)


def test_last_prompt_token_is_always_computed() -> None:
    engine = SimulatedEngine(a_profile())
    for start in (0, 10_000):
        engine.add(a_request("a", prompt=8, output=1, prefix=(1, 2)), at(start))
        last = finish(engine)[-1]

    assert last.at == 10_000 + 1_000 + 4 * 10


def test_prompts_in_one_step_share_their_common_prefix() -> None:
    engine = SimulatedEngine(a_profile(chunk_tokens=64))
    for name in "ab":
        engine.add(a_request(name, prompt=13, output=2, prefix=(1, 2, 3)), at(0))
    engine.advance(at(1))

    assert engine.state().kv_blocks_used == 3 + 2
    assert finish(engine)[0].at == 1_000 + (13 + 1) * 10


def test_oldest_cached_blocks_are_evicted_first() -> None:
    engine = SimulatedEngine(a_profile(kv_blocks=8))
    for start, name, prefix in [(0, "a", (1, 2)), (10_000, "b", (3, 4)), (20_000, "c", (5, 6, 7, 8))]:
        engine.add(a_request(name, prompt=4 * len(prefix), output=1, prefix=prefix), at(start))
        finish(engine)
    hits: list[int] = []
    # All blocks are cached. The next request needs one block, so the first prompt loses its last block.
    engine.add(a_request("d", prompt=3, output=2), at(30_000))
    finish(engine)
    for start, name, prefix in [(40_000, "e", (1, 2)), (50_000, "f", (5, 6, 7, 8))]:
        before = engine.state().prefix_hit_tokens
        engine.add(a_request(name, prompt=4 * len(prefix) + 1, output=1, prefix=prefix), at(start))
        finish(engine)
        hits.append(engine.state().prefix_hit_tokens - before)

    assert hits == [4, 16]


def test_lower_priority_number_runs_first_with_priority_scheduling() -> None:
    engine = SimulatedEngine(a_profile(sequences_max=1, priority_scheduling=True))
    engine.add(a_request("running", prompt=4, output=2), at(0))
    engine.add(a_request("late", priority=5), at(1))
    engine.add(a_request("urgent", priority=1), at(2))

    order = [each.request_id for each in finish(engine) if isinstance(each, SequenceFinished)]
    assert order == ["running", "urgent", "late"]


def test_cancelled_sequence_is_removed_when_its_step_ends() -> None:
    engine = SimulatedEngine(a_profile())
    engine.add(a_request("a", prompt=8, output=20), at(0))
    engine.advance(at(3_000))
    engine.cancel(a_request("a").request_id, at(3_000))

    assert engine.state().running == 1
    assert engine.next_instant() == 1_080 + 1_109 + 1_110
    assert engine.advance(at(4_000)) == []
    assert (engine.state().running, engine.state().kv_blocks_used, engine.next_instant()) == (0, 0, None)


def test_waiting_request_is_cancelled_immediately() -> None:
    engine = SimulatedEngine(a_profile(sequences_max=1))
    engine.add(a_request("a", output=20), at(0))
    engine.add(a_request("b"), at(1))
    engine.cancel(a_request("b").request_id, at(2))

    assert engine.state().waiting == 0
    assert [each.request_id for each in finish(engine) if isinstance(each, SequenceFinished)] == ["a"]


def test_embedding_request_ends_with_its_prompt() -> None:
    engine = SimulatedEngine(a_profile())
    engine.add(a_request("e", prompt=8, output=0), at(0))

    [ended] = finish(engine)
    assert (ended.at, engine.state().generated_tokens) == (1_080, 0)


def test_stall_delays_all_events_by_its_length() -> None:
    engine = SimulatedEngine(a_profile())
    engine.add(a_request("r", prompt=4, output=3), at(0))
    engine.stall(at(1_500), until=at(6_500))

    assert instants(engine) == {"r": (1_040, 1_040 + 1_105 + 1_106 + 5_000)}


def test_request_arriving_during_a_stall_starts_after_it() -> None:
    engine = SimulatedEngine(a_profile())
    engine.stall(at(0), until=at(5_000))
    engine.add(a_request("r", prompt=4, output=1), at(1_000))

    assert instants(engine) == {"r": (6_040, 6_040)}


def test_doubling_the_speed_halves_the_duration() -> None:
    engine = SimulatedEngine(a_profile())
    engine.change_speed(at(0), 2_000)
    engine.add(a_request("r", prompt=4, output=3), at(0))

    assert instants(engine) == {"r": (520, -(-(1_040 + 1_105 + 1_106) // 2))}


def test_times_are_rounded_up_without_accumulating_error() -> None:
    engine = SimulatedEngine(a_profile(step_ps=1_000_001, prefill_token_ps=0, decode_sequence_ps=0, kv_token_ps=0))
    engine.add(a_request("r", prompt=1, output=3), at(0))

    assert instants(engine) == {"r": (1_001, 3_001)}


def test_progress_is_available_between_events() -> None:
    engine = SimulatedEngine(a_profile())
    engine.add(a_request("r", prompt=4, output=20), at(0))
    engine.advance(at(1_040 + 1_105 + 1_106))

    assert engine.generated_tokens(a_request("r").request_id) == 3
    assert engine.state().generated_tokens == 3


def test_single_step_engine_reports_each_step() -> None:
    engine = SimulatedEngine(a_profile(), by_step=True)
    engine.add(a_request("a", prompt=4, output=2), at(0))
    engine.add(a_request("b", prompt=4, output=1), at(1))

    steps = [(each.at, each.request_ids) for each in finish(engine) if isinstance(each, StepFinished)]
    assert steps == [(1_040, ["a"]), (1_040 + 1_145, ["a", "b"])]


def test_request_larger_than_the_kv_cache_fails_an_assertion() -> None:
    engine = SimulatedEngine(a_profile(kv_blocks=8))

    with pytest.raises(AssertionError, match="r does not fit into the KV cache"):
        engine.add(a_request("r", prompt=30, output=3), at(0))
