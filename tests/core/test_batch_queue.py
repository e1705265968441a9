"""Tests for `BatchQueue`: which inputs are sent together, and when."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.core.batch_queue import (
    CREDIT_MAX,
    CREDIT_PER_CALL,
    EXCLUDED_REQUESTS,
    EXCLUDED_TENANTS_MAX,
    Batch,
    BatchQueue,
    Input,
)
from headgate.model.policy import BatchRules

MS = 1_000_000


def a_queue(**rules: object) -> BatchQueue:
    return BatchQueue(BatchRules(**({"batch_size_max": 4, "delay_ns_max": 5 * MS} | rules)))


def add(
    queue: BatchQueue, inputs: int = 1, *, tenant: str = "t", key: bytes = b"k", hold: int = 5 * MS, at: int = 0
) -> int:
    return queue.add(tenant, key, [1] * inputs, hold_ns=hold, now=at)


def busy(queue: BatchQueue, at: int = 0) -> Batch:
    """Starts a call, so that later requests wait for a batch."""
    add(queue, tenant="first", key=b"first", at=at)
    [batch] = queue.next(at)
    return batch


def sent(batches: list[Batch]) -> list[list[int]]:
    return [[each.request for each in batch.inputs] for batch in batches]


def test_request_is_sent_immediately_to_an_idle_engine() -> None:
    queue = a_queue()
    number = add(queue)

    assert sent(queue.next(0)) == [[number]]


def test_requests_wait_up_to_their_hold_time_while_the_engine_is_busy() -> None:
    queue = a_queue()
    busy(queue)
    one, other = add(queue, at=1 * MS), add(queue, at=2 * MS)

    assert queue.next(6 * MS - 1) == []
    assert queue.wakeup() == 6 * MS
    assert sent(queue.next(6 * MS)) == [[one, other]]


def test_full_batch_is_sent_immediately() -> None:
    queue = a_queue()
    busy(queue)
    numbers = [add(queue) for _ in range(5)]

    assert sent(queue.next(0)) == [numbers[:4]]


def test_batch_is_limited_by_tokens() -> None:
    queue = a_queue(tokens_max=10)
    busy(queue)
    for tokens in (6, 3, 4):
        queue.add("t", b"k", [tokens], hold_ns=MS, now=0)

    assert [len(batch.inputs) for batch in queue.next(0)] == [2]


def test_input_larger_than_any_batch_is_sent_alone() -> None:
    queue = a_queue(tokens_max=10)
    busy(queue)
    number = queue.add("t", b"k", [99], hold_ns=MS, now=0)

    assert sent(queue.next(0)) == [[number]]


def test_batch_reaching_a_preferred_size_is_sent_immediately() -> None:
    queue = a_queue(batch_size_max=8, preferred_batch_sizes=(3,))
    busy(queue)
    numbers = [add(queue), add(queue)]
    assert queue.next(0) == []

    numbers.append(add(queue))

    assert sent(queue.next(0)) == [numbers]


def test_waiting_requests_are_sent_when_the_engine_becomes_idle() -> None:
    queue = a_queue()
    first = busy(queue)
    number = add(queue)
    queue.succeed(first)

    assert sent(queue.next(1)) == [[number]]


def test_shortest_hold_time_sends_the_whole_group() -> None:
    queue = a_queue()
    busy(queue)
    patient, hasty = add(queue), add(queue, hold=1 * MS)

    assert sent(queue.next(1 * MS)) == [[patient, hasty]]


def test_hold_time_is_limited_by_the_rules() -> None:
    queue = a_queue()
    busy(queue)
    add(queue, hold=900 * MS)

    assert queue.wakeup() == 5 * MS


def test_requests_with_different_keys_are_not_joined() -> None:
    queue = a_queue()
    busy(queue)
    one, other = add(queue, key=b"a"), add(queue, key=b"b")

    assert sent(queue.next(5 * MS)) == [[one], [other]]


def test_long_list_leaves_room_for_others_in_the_first_batch() -> None:
    queue = a_queue()
    busy(queue)
    long = add(queue, 20, tenant="long")
    short = add(queue, tenant="short")

    first, second = queue.next(0)

    assert Counter(sent([first])[0]) == {long: 3, short: 1}
    assert sent([second]) == [[long] * 4]


def test_long_list_uses_a_limited_number_of_parallel_calls() -> None:
    queue = a_queue(calls_per_request_max=2)
    number = add(queue, 11)
    first, second = queue.next(0)
    assert queue.next(9 * MS) == []

    queue.succeed(second)

    [third] = queue.next(9 * MS)
    places = [each.place for batch in (first, second, third) for each in batch.inputs]
    assert places == list(range(11))
    assert len(queue) == 0
    assert {each.request for each in third.inputs} == {number}


def test_paused_request_sends_no_further_parts() -> None:
    queue = a_queue(calls_per_request_max=1)
    number = add(queue, 8)
    [first] = queue.next(0)
    queue.set_paused(number, paused=True)
    queue.succeed(first)
    assert queue.next(9 * MS) == []
    assert queue.wakeup() is None

    queue.set_paused(number, paused=False)

    assert [len(batch.inputs) for batch in queue.next(9 * MS)] == [4]


def test_requests_beyond_the_call_limit_wait_and_are_joined() -> None:
    queue = a_queue(calls_max=1)
    first = busy(queue)
    numbers = [add(queue) for _ in range(3)]
    assert queue.next(99 * MS) == []
    assert queue.wakeup() is None

    queue.succeed(first)

    assert sent(queue.next(99 * MS)) == [numbers]


def test_request_past_its_wait_budget_exceeds_the_call_limit_with_its_group() -> None:
    queue = a_queue(calls_max=1)
    busy(queue)
    patient = add(queue)
    hasty = queue.add("t", b"k", [1], hold_ns=1 * MS, wait_budget_ns=20 * MS, now=0)
    assert queue.next(20 * MS - 1) == []
    assert queue.wakeup() == 20 * MS

    assert sent(queue.next(20 * MS)) == [[patient, hasty]]
    assert queue.calls == 2


def test_rest_of_a_started_list_respects_the_call_limit() -> None:
    queue = a_queue(calls_max=1, calls_per_request_max=4)
    busy(queue)
    queue.add("t", b"k", [1] * 9, hold_ns=0, wait_budget_ns=20 * MS, now=0)

    assert [len(batch.inputs) for batch in queue.next(20 * MS)] == [4]
    assert queue.wakeup() is None


def test_changed_rules_apply_to_waiting_requests() -> None:
    queue = a_queue(calls_per_request_max=2)
    busy(queue)
    add(queue, 3)
    queue.set_rules(BatchRules(batch_size_max=2, calls_per_request_max=1, delay_ns_max=5 * MS))

    assert [len(batch.inputs) for batch in queue.next(0)] == [2]
    assert queue.next(9 * MS) == []


def test_tenants_alternate_within_and_across_batches() -> None:
    queue = a_queue(calls_max=1)
    first = busy(queue)
    numbers = {tenant: [add(queue, tenant=tenant) for _ in range(4)] for tenant in "abc"}
    order: list[int] = []
    batch = first
    for _ in range(3):
        queue.succeed(batch)
        [batch] = queue.next(0)
        order += [each.request for each in batch.inputs]

    tenants = [next(tenant for tenant in "abc" if number in numbers[tenant]) for number in order]
    assert [Counter(tenants[start : start + 3]) for start in range(0, 12, 3)] == [Counter("abc")] * 4


def test_long_list_does_not_delay_other_requests_from_its_tenant() -> None:
    queue = a_queue(calls_max=1)
    first = busy(queue)
    long = add(queue, 20, tenant="t")
    short = add(queue, tenant="t")
    queue.succeed(first)

    [batch] = queue.next(0)

    assert Counter(sent([batch])[0]) == {long: 3, short: 1}


def test_parallel_calls_for_a_long_list_are_limited_by_tokens() -> None:
    queue = a_queue(tokens_max=10, calls_per_request_max=2)
    queue.add("t", b"k", [6] * 9, hold_ns=MS, now=0)
    first, second, third = queue.next(0) + queue.next(1 * MS)
    assert queue.next(9 * MS) == []

    queue.succeed(third)

    assert [len(batch.inputs) for batch in (first, second, third)] == [1] * 3
    assert [[each.place for each in batch.inputs] for batch in queue.next(9 * MS)] == [[3]]


def test_inputs_larger_than_any_batch_are_sent_one_at_a_time() -> None:
    queue = a_queue(tokens_max=10, calls_per_request_max=2)
    queue.add("t", b"k", [99, 99, 99], hold_ns=MS, now=0)
    sizes: list[int] = []
    while batches := queue.next(0):
        sizes.append(len(batches))
        for batch in batches:
            queue.succeed(batch)

    assert sizes == [1, 1, 1]


def test_request_marked_alone_is_neither_joined_nor_delayed() -> None:
    queue = a_queue()
    busy(queue)
    add(queue)
    alone = queue.add("t", b"k", [1] * 6, hold_ns=5 * MS, now=0, unbatched=True)

    assert sent(queue.next(0)) == [[alone] * 4, [alone] * 2]


def test_request_leaving_before_dispatch_is_not_sent() -> None:
    queue = a_queue()
    busy(queue)
    one, other = add(queue), add(queue)

    assert queue.remove(one) == ()
    assert sent(queue.next(5 * MS)) == [[other]]


def test_leave_returns_the_call_after_its_last_request_has_left() -> None:
    queue = a_queue()
    first = busy(queue)
    one, other = add(queue), add(queue)
    [batch] = queue.next(5 * MS)

    assert queue.remove(one) == ()
    assert queue.remove(other) == (batch.number,)
    assert queue.remove(other) == ()
    queue.finish(batch)
    assert queue.calls == 1
    assert queue.remove(first.inputs[0].request) == (first.number,)


def test_rejected_batch_is_halved_until_the_bad_request_is_found() -> None:
    queue = a_queue()
    first = busy(queue)
    numbers = [add(queue, tenant=f"t{number}") for number in range(4)]
    [batch] = queue.next(0)
    poisoned, calls = numbers[2], 0
    todo, clean, blamed = [batch], [], []
    while todo:
        each, calls = todo.pop(0), calls + 1
        if poisoned not in each.requests():
            queue.succeed(each)
            clean += each.requests()
        elif halves := queue.split_failed(each, rejected=True):
            todo += halves
        else:
            blamed += each.requests()
    queue.succeed(first)

    assert (sorted(clean), blamed, calls) == ([numbers[0], numbers[1], numbers[3]], [poisoned], 5)
    assert queue.calls == 0


def test_rejected_batch_from_one_list_is_not_divided() -> None:
    queue = a_queue()
    add(queue, 3)
    [batch] = queue.next(0)

    assert queue.split_failed(batch, rejected=True) == ()


def test_retries_on_a_failing_engine_are_limited_by_credit() -> None:
    queue = a_queue(batch_size_max=64)
    calls = 0
    for _ in range(10):
        add(queue, tenant="a")
        add(queue, tenant="b")
        todo = queue.next(0)
        while todo:
            calls += 1
            todo += queue.split_failed(todo.pop(0), rejected=False)

    assert calls <= 10 + CREDIT_MAX // CREDIT_PER_CALL


def test_tenant_that_caused_a_batch_rejection_is_kept_separate_for_a_while() -> None:
    queue = a_queue(batch_size_max=2)
    first = busy(queue)
    add(queue, tenant="good"), add(queue, tenant="bad")
    [batch] = queue.next(0)
    good, bad = queue.split_failed(batch, rejected=True)
    queue.succeed(good)
    assert queue.split_failed(bad, rejected=True) == ()
    queue.succeed(first)
    busy(queue)

    for _ in range(EXCLUDED_REQUESTS // 2):
        one, _, other = add(queue, tenant="bad"), add(queue, tenant="good"), add(queue, tenant="bad")
        [alone] = queue.next(0)
        assert sent([alone]) == [[one, other]]
        queue.succeed(alone)
        [rest] = queue.next(5 * MS)
        queue.succeed(rest)

    add(queue, tenant="bad"), add(queue, tenant="good")
    assert [len(batch.requests()) for batch in queue.next(0)] == [2]


def test_oldest_exclusion_ends_when_too_many_tenants_are_excluded() -> None:
    queue = a_queue(batch_size_max=2)
    first = busy(queue)
    for number in range(EXCLUDED_TENANTS_MAX + 1):
        add(queue, tenant="good"), add(queue, tenant=f"bad-{number}")
        [batch] = queue.next(0)
        good, bad = queue.split_failed(batch, rejected=True)
        queue.succeed(good)
        queue.split_failed(bad, rejected=True)
    queue.succeed(first)
    busy(queue)

    add(queue, tenant="bad-0"), add(queue, tenant="good")
    add(queue, tenant="bad-1"), add(queue, tenant="other")

    assert [len(batch.requests()) for batch in queue.next(0)] == [2]
    assert [len(batch.requests()) for batch in queue.next(5 * MS)] == [1, 1]


def test_rules_determine_the_share_of_a_target_that_a_request_may_wait() -> None:
    queue = a_queue(delay_ttft_percent_max=10)

    assert queue.rules.delay_ttft_percent_max == 10
    assert queue.wait_budget_ns((None, 300 * MS, 200 * MS)) == 20 * MS
    assert queue.wait_budget_ns((None, None)) is None


def test_wait_is_reported_once_per_request() -> None:
    queue = a_queue()
    busy(queue)
    add(queue, 7, at=1 * MS)
    add(queue, tenant="other", at=2 * MS)

    batches = queue.next(3 * MS)

    assert [batch.waits_ns for batch in batches] == [(2 * MS, 1 * MS), ()]


class Batching(RuleBasedStateMachine):
    """Checks that every input is sent once, in order, in time and within all limits, for any sequence of events."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = BatchRules(
            batch_size_max=4, preferred_batch_sizes=(2,), delay_ns_max=5, tokens_max=20, calls_per_request_max=2
        )
        self.queue = BatchQueue(self.rules)
        self.now = 0
        self.waiting: dict[int, dict[str, object]] = {}
        """Key, tokens of each input, due time, and sent and answered positions of each open request."""
        self.calls: dict[int, Batch] = {}

    def out(self, number: int) -> int:
        return sum(one.request == number for batch in self.calls.values() for one in batch.inputs)

    def out_tokens(self, number: int) -> int:
        tokens = self.waiting[number]["tokens"]
        assert isinstance(tokens, list)
        return sum(tokens[one.place] for batch in self.calls.values() for one in batch.inputs if one.request == number)

    @property
    def tokens_out_max(self) -> int:
        return self.rules.tokens_max * self.rules.calls_per_request_max

    def turn(self) -> None:
        for batch in self.queue.next(self.now):
            self.take(batch, fresh=True)

    def take(self, batch: Batch, *, fresh: bool) -> None:
        assert batch.inputs
        assert len(batch.inputs) <= self.rules.batch_size_max or not fresh
        self.calls[batch.number] = batch
        for number in batch.requests():
            assert self.out(number) <= self.rules.batch_size_max * self.rules.calls_per_request_max or not fresh
            assert self.out(number) == 1 or self.out_tokens(number) <= self.tokens_out_max or not fresh
        tokens = [self.waiting[each.request]["tokens"][each.place] for each in batch.inputs]  # type: ignore[index]
        assert len(tokens) == 1 or sum(tokens) <= self.rules.tokens_max
        assert len({self.waiting[each.request]["key"] for each in batch.inputs}) == 1
        assert len(batch.requests()) == 1 or not any(self.waiting[each]["alone"] for each in batch.requests())
        for each in batch.inputs:
            asked = self.waiting[each.request]["asked"]
            assert isinstance(asked, list)
            if fresh:
                # Inputs are sent in order and only once.
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
        number = self.queue.add(
            tenant, key, tokens, hold_ns=hold, wait_budget_ns=patience, unbatched=alone, now=self.now
        )
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
            self.queue.succeed(batch)
            self.answer(batch.inputs)
        elif how == "ended":
            self.queue.finish(batch)
            self.give_up(batch)
        else:
            halves = self.queue.split_failed(batch, rejected=how == "refused")
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
        for deserted in self.queue.remove(number):
            assert not any(each in self.waiting for each in self.calls[deserted].requests())
            self.queue.finish(self.calls.pop(deserted))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        self.go(data.draw(st.sampled_from(sorted(self.waiting))))
        self.turn()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), resting=st.booleans())
    def rests(self, data: st.DataObject, resting: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        self.queue.set_paused(number, paused=resting)
        self.waiting[number]["resting"] = resting
        self.turn()

    @rule(
        batch_size_max=st.integers(2, 5),
        calls_per_request_max=st.integers(1, 3),
        calls_max=st.none() | st.integers(1, 3),
    )
    def rules_change(self, batch_size_max: int, calls_per_request_max: int, calls_max: int | None) -> None:
        self.rules = replace(
            self.rules,
            batch_size_max=batch_size_max,
            calls_per_request_max=calls_per_request_max,
            calls_max=calls_max,
        )
        self.queue.set_rules(self.rules)
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
        out_max = self.rules.batch_size_max * self.rules.calls_per_request_max
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
