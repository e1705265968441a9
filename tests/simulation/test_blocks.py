"""Tests that the block pool neither loses blocks nor allocates one twice."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.simulation.engine.blocks import BlockPool

CAPACITY = 12


class Pool(RuleBasedStateMachine):
    """Takes, shares, names and returns blocks in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(CAPACITY)
        self.holders: list[tuple[list[int], int]] = []
        self.runs: list[int] = []

    @rule(names=st.lists(st.integers(0, 8), max_size=4, unique=True), unnamed=st.integers(0, 4))
    def hold(self, names: list[int], unnamed: int) -> None:
        found, free = self.pool.find_cached(names, 4)
        if len(names) - found + free + unnamed > self.pool.free:
            return
        held = names[:found]
        self.pool.acquire(held)
        for name in names[found:]:
            self.pool.allocate(1)
            if self.pool.register(name):
                held.append(name)
            else:
                unnamed += 1
                continue
        if unnamed > len(names) - len(held):
            self.pool.allocate(unnamed - (len(names) - len(held)))
        self.holders.append((held, unnamed))

    @precondition(lambda self: self.holders)
    @rule(which=st.integers(0, 10))
    def give_back(self, which: int) -> None:
        self.pool.release(*self.holders.pop(which % len(self.holders)))

    @precondition(lambda self: self.holders)
    @rule(which=st.integers(0, 10))
    def set_aside(self, which: int) -> None:
        names, unnamed = self.holders.pop(which % len(self.holders))
        partial = min(1, unnamed)
        self.runs.append(self.pool.release_preempted(names, unnamed - partial, partial))

    @precondition(lambda self: self.runs)
    @rule(which=st.integers(0, 10), skip=st.integers(0, 2))
    def resume(self, which: int, skip: int) -> None:
        self.holders.append(([], self.pool.resume(self.runs.pop(which % len(self.runs)), skip=skip)))

    @invariant()
    def every_block_is_free_or_held(self) -> None:
        named = {name for names, _ in self.holders for name in names}
        assert self.pool.used == len(named) + sum(unnamed for _, unnamed in self.holders)
        assert 0 <= self.pool.free <= CAPACITY


Pool.TestCase.settings = settings(max_examples=2 * settings.default.max_examples, stateful_step_count=30)
TestPool = Pool.TestCase
