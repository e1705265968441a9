"""Which hashes of its prompt's beginning would a gateway have made of an arrival?

A trace names blocks of 512 tokens where a gateway sees text. Names are chained as hashes are, so a name and a distance
make a hash: equal where the beginnings are equal up to there, as far as the trace can tell.
"""

from headgate.model.prefix import DISTANCES, HASHES_MAX, pack
from headgate.simulation.workload.arrival import PREFIX_BLOCK_TOKENS, Arrival


def packed_hashes(arrival: Arrival) -> bytes:
    """As a ticket carries them. Salts are left out, since simulated engines have none."""
    names = arrival.prefix
    named = min(arrival.prompt_tokens, PREFIX_BLOCK_TOKENS * len(names))
    return pack(
        [
            names[(distance - 1) // PREFIX_BLOCK_TOKENS] * HASHES_MAX + number
            for number, distance in enumerate(DISTANCES)
            if distance <= named
        ]
    )
