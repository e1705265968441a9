"""Prefix hashes that a gateway would compute for a simulated arrival.

A gateway hashes text, but a trace only identifies blocks of 512 tokens. Block names are chained like hashes, so each
hash is derived from a name and a distance. Two hashes are equal if the prompts are equal up to that distance, at the
precision of the trace.
"""

from headgate.model.prefix import HASHES_MAX, PREFIX_LENGTHS, pack_hashes
from headgate.simulation.workload.arrival import PREFIX_BLOCK_TOKENS, Arrival


def packed_prefix_hashes(arrival: Arrival) -> bytes:
    """Returns packed hashes in ticket format, without salts. Simulated engines do not use salts."""
    names = arrival.prefix
    named = min(arrival.prompt_tokens, PREFIX_BLOCK_TOKENS * len(names))
    return pack_hashes(
        [
            names[(distance - 1) // PREFIX_BLOCK_TOKENS] * HASHES_MAX + number
            for number, distance in enumerate(PREFIX_LENGTHS)
            if distance <= named
        ]
    )
