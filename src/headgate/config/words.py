"""Is a word one of the few that may stand there?"""

from enum import StrEnum
from typing import TypeVar

from headgate.config.problems import Place, Report
from headgate.config.shape import suggestion

Word = TypeVar("Word", bound=StrEnum)


def one_of(kind: type[Word], text: str | None, otherwise: Word, place: Place, report: Report) -> Word:
    """The word that is meant; `otherwise` where none is given or none of them is."""
    if text is None:
        return otherwise
    known = [each.value for each in kind]
    if text in known:
        return kind(text)
    hint = suggestion(text, known, quiet=f"; there is {', '.join(known)}")
    report.problem(place, f'{kind.__name__.lower()} "{text}" does not exist{hint}')
    return otherwise
