"""Which file is meant by the name of a trace?

A path is relative to the scenario's own file. A bare name stands for a public trace below `$HEADGATE_DATA/traces`;
where it is not to be found, the message says where such traces come from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from headgate.config.problems import Place, Report
from headgate.config.shape import suggestion

VARIABLE = "HEADGATE_DATA"
_TRACE_ENDS = (".csv", ".jsonl", ".csv.gz", ".jsonl.gz")
_SERVEGEN = "servegen_"
_RATES_ENDS = ("_rates.csv", "_rates.csv.gz")
_LENGTHS_ENDS = ("_lengths.jsonl", "_lengths.jsonl.gz")
_BOTH_ENDS = (_RATES_ENDS, _LENGTHS_ENDS)
_FOLDER = "traces"
_PUBLIC_ENDS = {"mooncake_": ".jsonl"}
"""How the name of a public trace begins -> how its file ends, where that is not .csv."""

SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "azure2023_conv": "github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv",
        "azure2023_code": "github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_code.csv",
        "mooncake_": "github.com/kvcache-ai/Mooncake, the FAST25 traces",
        "lmsys_": "github.com/Ying1123/VTC-artifact, the trace of Chatbot Arena",
        _SERVEGEN: "github.com/alibaba/ServeGen, repacked as docs/reference/scenarios.md says",
    }
)
"""How the name of a public trace begins -> where it comes from."""


@dataclass(frozen=True, slots=True)
class Library:
    """Where traces are looked for."""

    beside: Path
    """The folder of the scenario's own file."""
    environ: Mapping[str, str]
    report: Report

    def trace(self, name: str, place: Place) -> Path | None:
        """None where the problem has been told."""
        if not _is_bare(name):
            path = self.beside / name
            if path.is_dir():
                self.report.problem(place, f'"{path}" is a folder; name a file in it')
            elif not path.is_file():
                self.report.problem(place, f'there is no file "{path}"; a path is relative to the scenario\'s own file')
            return path
        found = _first(self._folder(), name, _TRACE_ENDS)
        if found is None:
            end = next((end for begin, end in _PUBLIC_ENDS.items() if name.startswith(begin)), _TRACE_ENDS[0])
            problem = self._beside(name) or self._missing(name, (_TRACE_ENDS,), name + end)
            self.report.problem(place, problem)
        return found

    def servegen(self, name: str, place: Place) -> tuple[Path, Path] | None:
        """The rates of the clients, and the lengths of what they ask. None where the problem has been told."""
        is_path = "/" in name
        folder, name = (self.beside, name) if is_path else (self._folder(), _SERVEGEN + name)
        rates, lengths = (_first(folder, name, ends) for ends in _BOTH_ENDS)
        if rates is not None and lengths is not None:
            return rates, lengths
        if is_path:
            problem = f'there are no files "{self.beside / name}" with {_RATES_ENDS[1]} and {_LENGTHS_ENDS[1]} after it'
            self.report.problem(place, f"{problem}; a path is relative to the scenario's own file")
        else:
            needed = f"both {name}{_RATES_ENDS[0]} and {name}{_LENGTHS_ENDS[0]}"
            self.report.problem(place, self._missing(name, _BOTH_ENDS, needed))
        return None

    def _folder(self) -> Path | None:
        """Where public traces are. None where nobody says it."""
        data = self.environ.get(VARIABLE)
        return Path(data) / _FOLDER if data else None

    def _beside(self, name: str) -> str | None:
        """What is wrong with a bare name where something next to the scenario is meant."""
        if near := _first(self.beside, name, _TRACE_ENDS):
            return f'there is no public trace "{name}"; did you mean {near.name}?'
        if (self.beside / name).is_dir():
            return f'"{self.beside / name}" is a folder; name a file in it'
        if (self.beside / name).is_file():
            return f'there is no public trace "{name}"; did you mean ./{name}?'
        return None

    def _missing(self, name: str, kinds: tuple[tuple[str, ...], ...], needed: str) -> str:
        """`kinds` are the endings of each of the files that the trace is made of."""
        folder = self._folder()
        if folder is None:
            return (
                f'public trace "{name}" is looked for in the folder {_FOLDER} below ${VARIABLE}, which is not set; '
                f"export {VARIABLE}=FOLDER with {needed} in FOLDER/{_FOLDER}{_source(name)}"
            )
        above = folder.parent
        if above.name == _FOLDER and all(_first(above, name, ends) for ends in kinds):
            return f'trace "{name}" is in ${VARIABLE} itself, not in {folder}; export {VARIABLE}={above.parent}'
        others = [each for each in _names_in(folder, kinds[0]) if each != name]  # Of two files one may be there.
        hint = suggestion(name, others, quiet=f"; put {needed} there{_source(name)}")
        return f'there is no trace "{name}" in {folder}{hint}'


def _is_bare(name: str) -> bool:
    return "/" not in name and not name.endswith(_TRACE_ENDS)


def _first(folder: Path | None, name: str, ends: tuple[str, ...]) -> Path | None:
    return folder and next((path for end in ends if (path := folder / (name + end)).is_file()), None)


def _names_in(folder: Path, ends: tuple[str, ...]) -> list[str]:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [each.name.removesuffix(end) for each in files for end in ends if each.name.endswith(end)]


def _source(name: str) -> str:
    source = next((source for begin, source in SOURCES.items() if name.startswith(begin)), None)
    return f" (it comes from {source})" if source else "; or name a file by its path"
