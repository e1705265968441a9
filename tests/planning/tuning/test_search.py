"""Search for the change that helps most."""

import pytest

from headgate.planning.tuning.change import SettingChange
from headgate.planning.tuning.result import ERROR_RATE
from headgate.planning.tuning.search import SCREENING_SEEDS, joined
from tests.planning.tuning.builders import FakeRuns, Values, a_search, a_tunable, paths

LIMIT, DELAY, COUNT = "pools.main.in_flight_max", "classes.chat.queue_wait_max", "pools.main.engines[0].count"
INERT = [a_tunable(f"retry.setting_{number}") for number in range(20)]
ALL = [a_tunable(LIMIT), a_tunable(DELAY), a_tunable(COUNT), *INERT]


def limited(values: Values) -> tuple[float, float, float]:
    """A limit that is too low, and engines that help at a price."""
    limit, count = int(values.get(LIMIT) or 100), int(values.get(COUNT) or 100)
    return min(0.98, 0.70 + 0.001 * (limit - 100) + 0.001 * (count - 100)), 0.97, 5.0 * count / 100


def test_search_finds_the_setting_and_its_nearest_sufficient_value() -> None:
    step = a_search(FakeRuns(limited, noise=0.005), ALL).step(())

    assert [each.change for each in step.suggestions] == [
        SettingChange(LIMIT, "100", "400"),
        SettingChange(COUNT, "100", "400"),
    ]
    assert step.is_complete


def test_changes_are_confirmed_with_seeds_that_did_not_select_them() -> None:
    runs = FakeRuns(limited, noise=0.005)
    step = a_search(runs, ALL, seeds=8).step(())
    seeds = runs.seeds_by_changes[(step.suggestions[0].change,)]

    assert seeds == set(range(SCREENING_SEEDS + 8))
    assert len(step.suggestions[0].evidence.after) == 8
    assert step.confidence == pytest.approx(1 - ERROR_RATE / (len(step.suggestions) + len(step.unconfirmed)))


def test_search_combines_changes_until_nothing_improves() -> None:
    def both(values: Values) -> tuple[float, float, float]:
        limit, delay = int(values.get(LIMIT) or 100), int(values.get(DELAY) or 100)
        return (0.97 if limit >= 200 else 0.60), (0.95 if delay <= 50 else 0.80), 5.0

    search = a_search(FakeRuns(both), ALL)
    steps = list(search.steps())

    made = [step.suggestions[0].change for step in steps if step.suggestions]
    assert made == [SettingChange(LIMIT, "100", "200"), SettingChange(DELAY, "100", "50")]
    assert steps[-1].suggestions == ()
    assert search.compare(tuple(made)).newly_missed() == []


def test_search_never_takes_from_a_class_that_held_its_objective() -> None:
    def trade(values: Values) -> tuple[float, float, float]:
        return (0.99, 0.85, 5.0) if int(values.get(LIMIT) or 100) > 100 else (0.80, 0.92, 5.0)

    assert a_search(FakeRuns(trade), ALL).step(()).suggestions == ()


def test_values_that_the_configuration_rejects_are_not_tried() -> None:
    step = a_search(FakeRuns(limited, noise=0.005, invalid=[LIMIT]), ALL).step(())

    assert paths([each.change for each in step.suggestions]) == [COUNT]


@pytest.mark.parametrize("runs_max", [10, 120])
def test_search_stays_within_its_budget(runs_max: int) -> None:
    runs = FakeRuns(limited, noise=0.005)
    search = a_search(runs, [*INERT, *ALL[:3]], runs_max=runs_max)
    step = search.step(())
    search.compare(())

    assert not step.is_complete
    assert runs.count <= max(runs_max, SCREENING_SEEDS + 2 * 6)


def test_nothing_is_suggested_if_no_setting_has_an_effect() -> None:
    """The claimed error rate holds: noise alone rarely looks like a benefit that can be confirmed."""
    rounds = 100
    alarms = sum(
        bool(
            a_search(FakeRuns(lambda _: (0.94, 0.92, 5.0), noise=0.02), INERT, first_seed=1_000 * number)
            .step(())
            .suggestions
        )
        for number in range(rounds)
    )

    assert alarms <= ERROR_RATE * rounds


def test_changes_of_one_setting_are_joined() -> None:
    first, second = SettingChange(LIMIT, "100", "200"), SettingChange(LIMIT, "200", "400")
    other = SettingChange(DELAY, "10s", "5s")

    assert joined(joined((first,), other), second) == (other, SettingChange(LIMIT, "100", "400"))
