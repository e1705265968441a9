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
            if not path.is_file():
                self.report.problem(place, f'there is no file "{path}"; a path is relative to the scenario\'s own file')
            return path
        return self._named(name, _TRACE_ENDS, place)

    def servegen(self, name: str, place: Place) -> tuple[Path, Path] | None:
        """The rates of the clients, and the lengths of what they ask. None where the problem has been told."""
        if "/" in name:
            rates, lengths = (_first(self.beside, name, ends) for ends in (_RATES_ENDS, _LENGTHS_ENDS))
            if rates is None or lengths is None:
                problem = (
                    f'there are no files "{self.beside / name}" with {_RATES_ENDS[1]} and {_LENGTHS_ENDS[1]} after it'
                )
                self.report.problem(place, f"{problem}; a path is relative to the scenario's own file")
                return None
        else:
            rates = self._named(_SERVEGEN + name, _RATES_ENDS, place)
            lengths = self._named(_SERVEGEN + name, _LENGTHS_ENDS, place)
        return None if rates is None or lengths is None else (rates, lengths)

    def _named(self, name: str, ends: tuple[str, ...], place: Place) -> Path | None:
        data = self.environ.get(VARIABLE)
        if not data:
            problem = (
                f'public trace "{name}" is looked for in the folder traces below ${VARIABLE}, which is not set; '
                f"export {VARIABLE}=FOLDER with {name}{ends[0]} in FOLDER/traces{_source(name)}"
            )
            self.report.problem(place, problem)
            return None
        folder = Path(data) / "traces"
        found = _first(folder, name, ends)
        if found is None:
            hint = suggestion(name, _names_in(folder, ends), quiet=f"; put {name}{ends[0]} there{_source(name)}")
            self.report.problem(place, f'there is no trace "{name}" in {folder}{hint}')
        return found


def _is_bare(name: str) -> bool:
    return "/" not in name and not name.endswith(_TRACE_ENDS)


def _first(folder: Path, name: str, ends: tuple[str, ...]) -> Path | None:
    return next((path for end in ends if (path := folder / (name + end)).is_file()), None)


def _names_in(folder: Path, ends: tuple[str, ...]) -> list[str]:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [each.name.removesuffix(end) for each in files for end in ends if each.name.endswith(end)]


def _source(name: str) -> str:
    source = next((source for begin, source in SOURCES.items() if name.startswith(begin)), None)
    return f" (it comes from {source})" if source else "; or name a file by its path"
