"""Alternatives of a scenario: the same traffic on another fleet, for capacity plans.

An alternative replaces the scenario's `pools`, and optionally its `classes` and `models`, as a whole.
"""

from msgspec import structs

from headgate.config.problems import ConfigProblem, ConfigReport, SettingPath, dotted
from headgate.config.scenarios.schema import AlternativeSection, ScenarioFile


def with_alternative(file: ScenarioFile, alternative: AlternativeSection) -> ScenarioFile:
    """The scenario on the alternative's fleet. Faults are left out, because they name engines."""
    return structs.replace(
        file,
        pools=alternative.pools,
        classes=file.classes if alternative.classes is None else alternative.classes,
        models=file.models if alternative.models is None else alternative.models,
        faults=[],
        alternatives={},
    )


class AlternativeReport(ConfigReport):
    """Adds an alternative's problems to the scenario's report.

    Problems in a replaced section get the path in the alternative. Other problems belong to the scenario. If it does
    not have them itself, the alternative does not fit to it.
    """

    def __init__(self, scenario: ConfigReport, name: str, alternative: AlternativeSection) -> None:
        super().__init__(scenario.file)
        self._scenario = scenario
        self._place = ("alternatives", name)
        self._replaced = [each for each in ("pools", "classes", "models") if getattr(alternative, each) is not None]

    def add_problem(self, place: SettingPath, message: str, *, contents_valid: bool = False) -> None:
        if place[0] in self._replaced:
            self._scenario.add_problem((*self._place, *place), message, contents_valid=contents_valid)
        elif not self._scenario.has_problem(place):
            self._scenario.add_problem(self._place, f"{dotted(place)}: {message}", contents_valid=True)

    def add_warning(self, place: SettingPath, message: str) -> None:
        if place[0] in self._replaced:
            self._scenario.add_warning((*self._place, *place), message)

    def has_problem(self, place: SettingPath) -> bool:
        return self._scenario.has_problem((*self._place, *place)) or self._scenario.has_problem(place)

    def warnings(self) -> tuple[ConfigProblem, ...]:
        return self._scenario.warnings()

    def problems(self) -> tuple[ConfigProblem, ...]:
        return self._scenario.problems()
