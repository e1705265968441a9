"""Profiles and workloads that drive a small engine into its edge cases."""

from typing import Any

from hypothesis import strategies as st

from headgate.model.engine_profile import EngineProfile
from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.loop import SimulatedEngine
from headgate.simulation.engine.sequence import EngineEvent, EngineRequest, StepFinished
from tests.simulation.plain_engine import Add, Cancel, Entry


def a_profile(**changes: Any) -> EngineProfile:
    """Returns a profile with blocks of 4 tokens.

    A step takes 1,000 ns, plus 10 ns per prompt token, 100 ns per decoding sequence and 1 ns per token read.
    """
    defaults: dict[str, Any] = {
        "name": "small",
        "step_ps": 1_000_000,
        "prefill_token_ps": 10_000,
        "decode_sequence_ps": 100_000,
        "kv_token_ps": 1_000,
        "attention_ps": 0,
        "chunk_tokens": 16,
        "sequences_max": 4,
        "kv_blocks": 16,
        "block_tokens": 4,
        "context_tokens": 32,
    }
    return EngineProfile(**defaults | changes)


def a_request(request_id: str, prompt: int = 4, output: int = 3, **fields: Any) -> EngineRequest:
    return EngineRequest(RequestId(request_id), prompt, output, **fields)


def a_tight_profile(*, spare_blocks: int, block_tokens: int, watermark_blocks: int, **changes: Any) -> EngineProfile:
    """Returns a profile with slightly more KV cache than the longest sequence needs."""
    blocks = -(-32 // block_tokens) + watermark_blocks + spare_blocks
    return a_profile(block_tokens=block_tokens, watermark_blocks=watermark_blocks, kv_blocks=blocks, **changes)


PROFILES = st.builds(
    a_tight_profile,
    spare_blocks=st.integers(0, 10),
    step_ps=st.sampled_from([99_999, 1_000_000, 1_234_567]),
    prefill_token_ps=st.sampled_from([0, 1, 10_000, 33_333]),
    decode_sequence_ps=st.sampled_from([0, 7, 100_000]),
    kv_token_ps=st.sampled_from([0, 1, 1_001]),
    attention_ps=st.sampled_from([0, 2, 31]),
    chunk_tokens=st.integers(5, 24),
    sequences_max=st.integers(1, 5),
    block_tokens=st.sampled_from([3, 4]),
    watermark_blocks=st.integers(0, 2),
    priority_scheduling=st.booleans(),
    prefix_cache=st.booleans(),
    async_scheduling=st.booleans(),
)


@st.composite
def scripts(draw: st.DrawFn, requests_max: int = 14) -> list[Entry]:
    """Arrivals in bursts and during steps. Some requests share prompt prefixes, and some are cancelled."""
    script: list[Entry] = []
    at = 0
    for number in range(draw(st.integers(1, requests_max))):
        at += draw(st.sampled_from([0, 0, 1, 500, 1_500, 20_000]))
        script.append(Add(Instant(at), _request(draw, number)))
        if draw(st.integers(0, 4)) == 0:
            patience = draw(st.sampled_from([0, 1, 1_000, 3_000, 30_000]))
            script.append(Cancel(Instant(at + patience), RequestId(f"r{number}")))
    return sorted(script, key=lambda entry: entry.at)


def _request(draw: st.DrawFn, number: int) -> EngineRequest:
    prompt = draw(st.integers(1, 20))
    output = draw(st.integers(0, 12))
    # Prompts are branches of one of two trees. Their block names are equal up to the point where they diverge.
    tree, shared = draw(st.integers(0, 1)), draw(st.integers(0, 5))
    prefix = [100 * tree + place if place < shared else 1000 * (number + 1) + place for place in range(prompt // 4)]
    return a_request(f"r{number}", prompt, output, prefix=tuple(prefix), priority=draw(st.integers(0, 2)))


def tell(engine: SimulatedEngine, entry: Entry) -> None:
    match entry:
        case Add(at, request):
            engine.add(request, at)
        case Cancel(at, request_id):
            engine.cancel(request_id, at)


def finish(engine: SimulatedEngine) -> list[EngineEvent]:
    happened: list[EngineEvent] = []
    while (instant := engine.next_instant()) is not None:
        happened += engine.advance(instant)
    return happened


def played(engine: SimulatedEngine, script: list[Entry]) -> list[EngineEvent]:
    """Plays the script to its end. Returns everything that happens, excluding the individual steps."""
    for entry in script:
        tell(engine, entry)
    return [each for each in finish(engine) if not isinstance(each, StepFinished)]
