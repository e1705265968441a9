"""Are the right inputs asked together, and in time?"""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.engines.batching.queue import CREDIT_MAX, CREDIT_PER_CALL, SHUNNED_REQUESTS, Batch, BatchQueue, Input
from headgate.model.policy import BatchRules

MS = 1_000_000


def a_queue(**rules: object) -> BatchQueue:
    return BatchQueue(BatchRules(**({"inputs_max": 4, "delay_ns_max": 5 * MS} | rules)))


def add(
    queue: BatchQueue, inputs: int = 1, *, tenant: str = "t", key: bytes = b"k", hold: int = 5 * MS, at: int = 0
) -> int:
    return queue.add(tenant, key, [1] * inputs, hold_ns=hold, now=at)


def busy(queue: BatchQueue, at: int = 0) -> Batch:
    """The queue with a call in flight, so that others wait for company."""
    add(queue, tenant="first", key=b"first", at=at)
    [batch] = queue.next(at)
    return batch


def sent(batches: list[Batch]) -> list[list[int]]:
    return [[each.request for each in batch.inputs] for batch in batches]


def test_an_idle_engine_is_asked_at_once() -> None:
    queue = a_queue()
    number = add(queue)

    assert sent(queue.next(0)) == [[number]]


def test_while_it_is_busy_requests_wait_for_company_as_long_as_they_may() -> None:
    queue = a_queue()
    busy(queue)
    one, other = add(queue, at=1 * MS), add(queue, at=2 * MS)

    assert queue.next(6 * MS - 1) == []
    assert queue.wakeup() == 6 * MS
    assert sent(queue.next(6 * MS)) == [[one, other]]


def test_a_full_batch_waits_for_nobody() -> None:
    queue = a_queue()
    busy(queue)
    numbers = [add(queue) for _ in range(5)]

    assert sent(queue.next(0)) == [numbers[:4]]


def test_a_batch_is_full_by_its_tokens_too() -> None:
    queue = a_queue(tokens_max=10)
    busy(queue)
    for tokens in (6, 3, 4):
        queue.add("t", b"k", [tokens], hold_ns=MS, now=0)

    assert [len(batch.inputs) for batch in queue.next(0)] == [2]


def test_an_input_too_long_for_any_batch_goes_alone() -> None:
    queue = a_queue(tokens_max=10)
    busy(queue)
    number = queue.add("t", b"k", [99], hold_ns=MS, now=0)

    assert sent(queue.next(0)) == [[number]]


def test_a_preferred_number_goes_at_once() -> None:
    queue = a_queue(inputs_max=8, preferred=(3,))
    busy(queue)
    numbers = [add(queue), add(queue)]
    assert queue.next(0) == []

    numbers.append(add(queue))

    assert sent(queue.next(0)) == [numbers]


def test_when_the_engine_falls_idle_whoever_waits_goes() -> None:
    queue = a_queue()
    first = busy(queue)
    number = add(queue)
    queue.answered(first)

    assert sent(queue.next(1)) == [[number]]


def test_who_may_be_held_for_less_takes_its_company_along() -> None:
    queue = a_queue()
    busy(queue)
    patient, hasty = add(queue), add(queue, hold=1 * MS)

    assert sent(queue.next(1 * MS)) == [[patient, hasty]]


def test_nobody_is_held_for_longer_than_the_rules_say() -> None:
    queue = a_queue()
    busy(queue)
    add(queue, hold=900 * MS)

    assert queue.wakeup() == 5 * MS


def test_those_who_say_other_things_go_apart() -> None:
    queue = a_queue()
    busy(queue)
    one, other = add(queue, key=b"a"), add(queue, key=b"b")

    assert sent(queue.next(5 * MS)) == [[one], [other]]


def test_a_list_leaves_room_for_others_in_every_batch() -> None:
    queue = a_queue()
    busy(queue)
    long = add(queue, 20, tenant="long")
    short = add(queue, tenant="short")

    first, second = queue.next(0)

    assert Counter(sent([first])[0]) == {long: 3, short: 1}
    assert sent([second]) == [[long] * 4]


def test_a_list_is_out_in_so_many_calls_at_a_time_and_goes_on_as_they_end() -> None:
    queue = a_queue(parallel=2)
    number = add(queue, 11)
    first, second = queue.next(0)
    assert queue.next(9 * MS) == []

    queue.answered(second)

    [third] = queue.next(9 * MS)
    places = [each.place for batch in (first, second, third) for each in batch.inputs]
    assert places == list(range(11))
    assert len(queue) == 0
    assert {each.request for each in third.inputs} == {number}


def test_nothing_more_is_asked_for_an_answer_that_is_not_read() -> None:
    queue = a_queue(parallel=1)
    number = add(queue, 8)
    [first] = queue.next(0)
    queue.rest(number, resting=True)
    queue.answered(first)
    assert queue.next(9 * MS) == []
    assert queue.wakeup() is None

    queue.rest(number, resting=False)

    assert [len(batch.inputs) for batch in queue.next(9 * MS)] == [4]


def test_a_bound_on_calls_has_everybody_else_go_together() -> None:
    queue = a_queue(calls_max=1)
    first = busy(queue)
    numbers = [add(queue) for _ in range(3)]
    assert queue.next(99 * MS) == []
    assert queue.wakeup() is None

    queue.answered(first)

    assert sent(queue.next(99 * MS)) == [numbers]


def test_who_can_bear_it_no_longer_goes_beyond_the_bound_on_calls_and_takes_its_company_along() -> None:
    queue = a_queue(calls_max=1)
    busy(queue)
    patient = add(queue)
    hasty = queue.add("t", b"k", [1], hold_ns=1 * MS, patience_ns=20 * MS, now=0)
    assert queue.next(20 * MS - 1) == []
    assert queue.wakeup() == 20 * MS

    assert sent(queue.next(20 * MS)) == [[patient, hasty]]
    assert queue.calls == 2


def test_a_list_that_has_begun_keeps_to_the_bound_on_calls() -> None:
    queue = a_queue(calls_max=1, parallel=4)
    busy(queue)
    queue.add("t", b"k", [1] * 9, hold_ns=0, patience_ns=20 * MS, now=0)

    assert [len(batch.inputs) for batch in queue.next(20 * MS)] == [4]
    assert queue.wakeup() is None


def test_other_rules_hold_from_then_on() -> None:
    queue = a_queue(parallel=2)
    busy(queue)
    add(queue, 3)
    queue.change(BatchRules(inputs_max=2, parallel=1, delay_ns_max=5 * MS))

    assert [len(batch.inputs) for batch in queue.next(0)] == [2]
    assert queue.next(9 * MS) == []


def test_tenants_take_turns_also_from_batch_to_batch() -> None:
    queue = a_queue(calls_max=1)
    first = busy(queue)
    numbers = {tenant: [add(queue, tenant=tenant) for _ in range(4)] for tenant in "abc"}
    order: list[int] = []
    batch = first
    for _ in range(3):
        queue.answered(batch)
        [batch] = queue.next(0)
        order += [each.request for each in batch.inputs]

    tenants = [next(tenant for tenant in "abc" if number in numbers[tenant]) for number in order]
    assert [Counter(tenants[start : start + 3]) for start in range(0, 12, 3)] == [Counter("abc")] * 4


def test_a_list_does_not_stand_before_its_own_tenants_other_requests() -> None:
    queue = a_queue(calls_max=1)
    first = busy(queue)
    long = add(queue, 20, tenant="t")
    short = add(queue, tenant="t")
    queue.answered(first)

    [batch] = queue.next(0)

    assert Counter(sent([batch])[0]) == {long: 3, short: 1}


def test_a_list_of_long_inputs_is_out_in_so_many_calls_too() -> None:
    queue = a_queue(tokens_max=10, parallel=2)
    queue.add("t", b"k", [6] * 9, hold_ns=MS, now=0)
    first, second, third = queue.next(0) + queue.next(1 * MS)
    assert queue.next(9 * MS) == []

    queue.answered(third)

    assert [len(batch.inputs) for batch in (first, second, third)] == [1] * 3
    assert [[each.place for each in batch.inputs] for batch in queue.next(9 * MS)] == [[3]]


def test_inputs_each_too_long_for_any_batch_go_one_after_the_other() -> None:
    queue = a_queue(tokens_max=10, parallel=2)
    queue.add("t", b"k", [99, 99, 99], hold_ns=MS, now=0)
    sizes: list[int] = []
    while batches := queue.next(0):
        sizes.append(len(batches))
        for batch in batches:
            queue.answered(batch)

    assert sizes == [1, 1, 1]


def test_who_is_to_go_alone_is_joined_with_nobody_and_waits_for_nobody() -> None:
    queue = a_queue()
    busy(queue)
    add(queue)
    alone = queue.add("t", b"k", [1] * 6, hold_ns=5 * MS, now=0, alone=True)

    assert sent(queue.next(0)) == [[alone] * 4, [alone] * 2]


def test_who_leaves_before_it_is_sent_is_not_asked_for() -> None:
    queue = a_queue()
    busy(queue)
    one, other = add(queue), add(queue)

    assert queue.leave(one) == ()
    assert sent(queue.next(5 * MS)) == [[other]]


def test_a_call_that_nobody_waits_for_is_named_once_the_last_has_left() -> None:
    queue = a_queue()
    first = busy(queue)
    one, other = add(queue), add(queue)
    [batch] = queue.next(5 * MS)

    assert queue.leave(one) == ()
    assert queue.leave(other) == (batch.number,)
    assert queue.leave(other) == ()
    queue.ended(batch)
    assert queue.calls == 1
    assert queue.leave(first.inputs[0].request) == (first.number,)


def test_a_refused_batch_is_asked_again_in_halves_until_the_one_is_found() -> None:
    queue = a_queue()
    first = busy(queue)
    numbers = [add(queue, tenant=f"t{number}") for number in range(4)]
    [batch] = queue.next(0)
    poisoned, calls = numbers[2], 0
    todo, clean, blamed = [batch], [], []
    while todo:
        each, calls = todo.pop(0), calls + 1
        if poisoned not in each.requests():
            queue.answered(each)
            clean += each.requests()
        elif halves := queue.spoiled(each, refused=True):
            todo += halves
        else:
            blamed += each.requests()
    queue.answered(first)

    assert (sorted(clean), blamed, calls) == ([numbers[0], numbers[1], numbers[3]], [poisoned], 5)
    assert queue.calls == 0


def test_a_list_that_is_refused_is_not_divided() -> None:
    queue = a_queue()
    add(queue, 3)
    [batch] = queue.next(0)

    assert queue.spoiled(batch, refused=True) == ()


def test_a_failing_engine_is_asked_again_only_as_long_as_there_is_credit() -> None:
    queue = a_queue(inputs_max=64)
    calls = 0
    for _ in range(10):
        add(queue, tenant="a")
        add(queue, tenant="b")
        todo = queue.next(0)
        while todo:
            calls += 1
            todo += queue.spoiled(todo.pop(0), refused=False)

    assert calls <= 10 + CREDIT_MAX // CREDIT_PER_CALL


def test_who_spoiled_a_batch_goes_with_its_own_for_a_while() -> None:
    queue = a_queue(inputs_max=2)
    first = busy(queue)
    add(queue, tenant="good"), add(queue, tenant="bad")
    [batch] = queue.next(0)
    good, bad = queue.spoiled(batch, refused=True)
    queue.answered(good)
    assert queue.spoiled(bad, refused=True) == ()
    queue.answered(first)
    busy(queue)

    for _ in range(SHUNNED_REQUESTS // 2):
        one, _, other = add(queue, tenant="bad"), add(queue, tenant="good"), add(queue, tenant="bad")
        [alone] = queue.next(0)
        assert sent([alone]) == [[one, other]]
        queue.answered(alone)
        [rest] = queue.next(5 * MS)
        queue.answered(rest)

    add(queue, tenant="bad"), add(queue, tenant="good")
    assert [len(batch.requests()) for batch in queue.next(0)] == [2]


def test_each_request_tells_once_how_long_it_waited() -> None:
    queue = a_queue()
    busy(queue)
    add(queue, 7, at=1 * MS)
    add(queue, tenant="other", at=2 * MS)

    batches = queue.next(3 * MS)

    assert [batch.waits_ns for batch in batches] == [(2 * MS, 1 * MS), ()]


class Batching(RuleBasedStateMachine):
    """Any order of events: nothing is lost, nothing is asked twice, nobody waits too long, and no bound is passed."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = BatchRules(inputs_max=4, preferred=(2,), delay_ns_max=5, tokens_max=20, parallel=2)
        self.queue = BatchQueue(self.rules)
        self.now = 0
        self.waiting: dict[int, dict[str, object]] = {}
        """Each request: its tenant, key and inputs, when it must go, which places have been asked, and which answered.
        """
        self.calls: dict[int, Batch] = {}

    def out(self, number: int) -> int:
        return sum(one.request == number for batch in self.calls.values() for one in batch.inputs)

    def out_tokens(self, number: int) -> int:
        tokens = self.waiting[number]["tokens"]
        assert isinstance(tokens, list)
        return sum(tokens[one.place] for batch in self.calls.values() for one in batch.inputs if one.request == number)

    @property
    def tokens_out_max(self) -> int:
        return self.rules.tokens_max * self.rules.parallel

    def turn(self) -> None:
        for batch in self.queue.next(self.now):
            self.take(batch, fresh=True)

    def take(self, batch: Batch, *, fresh: bool) -> None:
        assert batch.inputs
        assert len(batch.inputs) <= self.rules.inputs_max or not fresh
        self.calls[batch.number] = batch
        for number in batch.requests():
            assert self.out(number) <= self.rules.inputs_max * self.rules.parallel or not fresh
            assert self.out(number) == 1 or self.out_tokens(number) <= self.tokens_out_max or not fresh
        tokens = [self.waiting[each.request]["tokens"][each.place] for each in batch.inputs]  # type: ignore[index]
        assert len(tokens) == 1 or sum(tokens) <= self.rules.tokens_max
        assert len({self.waiting[each.request]["key"] for each in batch.inputs}) == 1
        assert len(batch.requests()) == 1 or not any(self.waiting[each]["alone"] for each in batch.requests())
        for each in batch.inputs:
            asked = self.waiting[each.request]["asked"]
            assert isinstance(asked, list)
            if fresh:
                # In order, and each but once.
                assert each.place == len(asked)
                asked.append(each.place)

    @rule(
        tenant=st.sampled_from("abc"),
        key=st.sampled_from([b"x", b"y"]),
        tokens=st.lists(st.integers(1, 25), min_size=1, max_size=14),
        hold=st.integers(0, 8),
        patience=st.none() | st.integers(0, 12),
        alone=st.booleans(),
    )
    def arrives(
        self, *, tenant: str, key: bytes, tokens: list[int], hold: int, patience: int | None, alone: bool
    ) -> None:
        number = self.queue.add(tenant, key, tokens, hold_ns=hold, patience_ns=patience, alone=alone, now=self.now)
        due = self.now if alone else self.now + min(hold, self.rules.delay_ns_max)
        self.waiting[number] = {"key": key, "tokens": tokens, "due": due, "asked": [], "answered": [], "alone": alone}
        if patience is not None:
            self.waiting[number]["late"] = max(due, self.now + patience)
        self.turn()

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), how=st.sampled_from(["answered", "refused", "failed", "ended"]))
    def a_call_ends(self, data: st.DataObject, how: str) -> None:
        batch = self.calls.pop(data.draw(st.sampled_from(sorted(self.calls))))
        halves: tuple[Batch, ...] = ()
        if how == "answered":
            self.queue.answered(batch)
            self.answer(batch.inputs)
        elif how == "ended":
            self.queue.ended(batch)
            self.give_up(batch)
        else:
            halves = self.queue.spoiled(batch, refused=how == "refused")
            wanted = {number for number in batch.requests() if number in self.waiting}
            assert not halves or {number for half in halves for number in half.requests()} == wanted
            if not halves:
                self.give_up(batch)
        for half in halves:
            self.take(half, fresh=False)
        self.turn()

    def answer(self, inputs: tuple[Input, ...]) -> None:
        for each in inputs:
            if each.request in self.waiting:
                answered = self.waiting[each.request]["answered"]
                assert isinstance(answered, list)
                assert each.place not in answered
                answered.append(each.place)
                if len(answered) == len(self.waiting[each.request]["tokens"]):  # type: ignore[arg-type]
                    del self.waiting[each.request]

    def give_up(self, batch: Batch) -> None:
        for number in batch.requests():
            if number in self.waiting:
                self.go(number)

    def go(self, number: int) -> None:
        del self.waiting[number]
        for deserted in self.queue.leave(number):
            assert not any(each in self.waiting for each in self.calls[deserted].requests())
            self.queue.ended(self.calls.pop(deserted))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        self.go(data.draw(st.sampled_from(sorted(self.waiting))))
        self.turn()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), resting=st.booleans())
    def rests(self, data: st.DataObject, resting: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        self.queue.rest(number, resting=resting)
        self.waiting[number]["resting"] = resting
        self.turn()

    @rule(inputs_max=st.integers(2, 5), parallel=st.integers(1, 3), calls_max=st.none() | st.integers(1, 3))
    def rules_change(self, inputs_max: int, parallel: int, calls_max: int | None) -> None:
        self.rules = replace(self.rules, inputs_max=inputs_max, parallel=parallel, calls_max=calls_max)
        self.queue.change(self.rules)
        self.turn()

    @rule(later=st.integers(0, 9))
    def time_passes(self, later: int) -> None:
        until = self.now + later
        while (wakeup := self.queue.wakeup()) is not None and wakeup <= until:
            self.now = max(self.now, wakeup)
            self.turn()
        self.now = until
        self.turn()

    @invariant()
    def nobody_waits_too_long_and_an_idle_engine_never(self) -> None:
        out_max = self.rules.inputs_max * self.rules.parallel
        for number, each in self.waiting.items():
            tokens, asked = each["tokens"], each["asked"]
            assert isinstance(tokens, list)
            assert isinstance(asked, list)
            may_go = len(asked) < len(tokens) and self.out(number) < out_max and not each.get("resting")
            if may_go and self.out(number):
                may_go = self.out_tokens(number) + tokens[len(asked)] <= self.tokens_out_max
            if self.rules.calls_max is None or len(self.calls) < self.rules.calls_max:
                must_go = self.now >= each["due"] or not self.calls  # type: ignore[operator]
            else:
                must_go = not asked and self.now >= each.get("late", self.now + 1)  # type: ignore[operator]
            assert not (may_go and must_go), (number, each, self.now)

    @invariant()
    def the_books_agree(self) -> None:
        assert self.queue.calls == len(self.calls)
        unsent = sum(len(each["tokens"]) - len(each["asked"]) for each in self.waiting.values())  # type: ignore[arg-type]
        assert len(self.queue) == unsent


TestBatching = pytest.mark.timeout(120)(Batching.TestCase)
TestBatching.settings = settings(stateful_step_count=40)
