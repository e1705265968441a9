"""At most one process holds a name at a time, even if the store's clock is set back."""

from headgate.hosts.cell.protocol.member_names import NAME_LEASE_NS, NameAnswer, NameClaim, NameEntry, claim_name
from headgate.model.units import SECOND, Instant, after
from testing.builders import at

HOUR_NS = 3_600 * SECOND


def claimed(entry: NameEntry | None, incarnation: str, now: Instant) -> tuple[NameEntry, NameAnswer]:
    return claim_name(entry, incarnation, NAME_LEASE_NS, now)


def test_store_grants_a_free_name_and_renews_it_for_the_same_incarnation() -> None:
    first, granted = claimed(None, "1", at(10))
    renewed, again = claimed(first, "1", at(11))

    assert (granted, again) == (NameAnswer(), NameAnswer())
    assert renewed == NameEntry("1", after(at(11), NAME_LEASE_NS))


def test_store_keeps_a_name_for_its_incarnation_until_the_entry_expires() -> None:
    entry, _ = claimed(None, "1", at(10))
    kept, refused = claimed(entry, "2", at(11.5))
    taken, granted = claimed(entry, "2", at(12))

    assert (kept, refused) == (entry, NameAnswer("1", SECOND // 2))
    assert (taken.incarnation, granted) == ("2", NameAnswer())


def test_store_keeps_a_name_for_one_more_lease_after_its_clock_moves_backwards() -> None:
    entry = NameEntry("1", Instant(at(10) + HOUR_NS))
    kept, refused = claimed(entry, "2", at(10))
    taken, granted = claimed(kept, "2", after(at(10), NAME_LEASE_NS))

    assert (kept, refused) == (NameEntry("1", after(at(10), NAME_LEASE_NS)), NameAnswer("1", -1))
    assert (taken.incarnation, granted) == ("2", NameAnswer())


def seen(*answers: NameAnswer) -> NameClaim:
    """Returns a process's view after these store replies, none of which grants the name."""
    view = NameClaim()

    assert [view.apply_answer(answer) for answer in answers] == [False] * len(answers)
    return view


def extended(incarnation: str, times: int) -> list[NameAnswer]:
    """Returns the replies to a process that sees another incarnation's entry extended `times` times."""
    return [NameAnswer(incarnation, SECOND), *[NameAnswer(incarnation, (1 + n) * SECOND) for n in range(1, times + 1)]]


def test_name_is_taken_if_another_incarnation_keeps_renewing_it() -> None:
    assert seen(*extended("1", 2)).is_taken


def test_entry_extended_once_is_not_treated_as_renewed() -> None:
    # A killed process's last renewal may arrive late. The reply about a correction may be lost or go to another
    # process.
    assert not seen(*extended("1", 1), NameAnswer("1", SECOND)).is_taken


def test_extensions_by_different_incarnations_do_not_add_up() -> None:
    assert not seen(*extended("1", 1), *extended("2", 1)).is_taken
    assert not seen(*extended("1", 1), NameAnswer("1", -1), *extended("2", 1)).is_taken
    assert seen(*extended("1", 1), *extended("2", 2)).is_taken


def test_extensions_before_this_process_had_the_name_are_not_counted() -> None:
    view = seen(*extended("1", 1))

    assert view.apply_answer(NameAnswer())
    assert [view.apply_answer(answer) for answer in extended("1", 1)] == [False] * 2
    assert not view.is_taken


def test_extensions_before_and_after_a_correction_add_up() -> None:
    assert seen(*extended("1", 1), NameAnswer("1", -1), *extended("1", 1)).is_taken


def test_entry_extended_by_a_clock_moving_backwards_is_not_treated_as_renewed() -> None:
    view = NameClaim()
    view.apply_answer(NameAnswer("1", SECOND))
    view.apply_answer(NameAnswer("1", -1))
    view.apply_answer(NameAnswer("1", 2 * SECOND))

    assert not view.is_taken
    assert view.apply_answer(NameAnswer())
    assert view.is_held
