"""Does a block with the new value harm so much that it must end at once?"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headgate.control.rollouts.comparison import SAMPLES_MIN, Proportion, difference
from headgate.control.trials.samples import BlockTally, OpenCount, pooled_counts
from headgate.model.units import ClassName

HARM_POINTS: Final = 10
"""By how many percentage points the bad requests of one block must exceed those of every block with the old value."""


def harm(
    block: BlockTally, others: Iterable[BlockTally], open_requests: Mapping[ClassName, OpenCount], look: int
) -> str:
    """Returns why the new value must be reverted before its block is over. Empty if nothing shows harm.

    This compares single requests, which depend on each other, with the worst block of the old value. It can therefore
    mistake a burst for harm. That only ends a trial early. If the blocks of a class are too small, those of each value
    count together. `others` are all other blocks.
    """
    others = [each for each in others if each is not block]
    new, old = ([each for each in others if each.has_new_value is value] for value in (True, False))
    for name in dict.fromkeys((*block.classes, *open_requests)):
        late, worst = _late(name, block, new, open_requests), _worst(name, old)
        found = difference(worst, late, look)
        if found is not None and found.low > HARM_POINTS / 100:
            return (
                f"{late.hits} of {late.count} requests of class {name} missed their targets or failed with the new "
                f"value, and {worst.hits} of {worst.count} with the old value"
            )
    return ""


def _late(
    name: ClassName, block: BlockTally, earlier: Sequence[BlockTally], open_requests: Mapping[ClassName, OpenCount]
) -> Proportion:
    """Counts a class's requests in this block, or with the new value in all blocks if these are too few."""
    still, ended = open_requests.get(name, OpenCount(0, 0)), pooled_counts(name, [block])
    if ended.count + still.open < SAMPLES_MIN:
        ended = pooled_counts(name, [block, *(each for each in earlier if not each.wrong_value)])
    return Proportion(ended.count + still.open, ended.hits + still.late)


def _worst(name: ClassName, blocks: Sequence[BlockTally]) -> Proportion:
    """Counts a class's requests in the worst block, or in all blocks if each has too few."""
    found = [each for block in blocks if (each := pooled_counts(name, [block])).count >= SAMPLES_MIN]
    return max(found, key=lambda each: each.hits / each.count, default=pooled_counts(name, blocks))
