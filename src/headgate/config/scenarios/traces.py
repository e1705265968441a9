"""Trace files of a scenario.

A path is relative to the scenario file. A bare name is a public trace in `$HEADGATE_DATA/traces`. If it is missing, the
message says where to get it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.schema_reader import suggestion

DATA_VARIABLE = "HEADGATE_DATA"
_TRACE_SUFFIXES = (".csv", ".jsonl", ".csv.gz", ".jsonl.gz")
_SERVEGEN = "servegen_"
_RATES_SUFFIXES = ("_rates.csv", "_rates.csv.gz")
_LENGTHS_SUFFIXES = ("_lengths.jsonl", "_lengths.jsonl.gz")
_SERVEGEN_SUFFIXES = (_RATES_SUFFIXES, _LENGTHS_SUFFIXES)
_FOLDER = "traces"
_PUBLIC_SUFFIXES = {"mooncake_": ".jsonl"}
"""File suffix of public traces by name prefix, if it is not .csv."""

SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "azure2023_conv": "github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv",
        "azure2023_code": "github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_code.csv",
        "mooncake_": "github.com/kvcache-ai/Mooncake, the FAST25 traces",
        "lmsys_": "github.com/Ying1123/VTC-artifact, the Chatbot Arena trace",
        _SERVEGEN: "github.com/alibaba/ServeGen, repacked as described in docs/reference/scenarios.md",
    }
)
"""Download sources for public traces, by name prefix."""


@dataclass(frozen=True, slots=True)
class TraceLibrary:
    """Lookup of trace files."""

    scenario_directory: Path
    """Directory that contains the scenario file."""
    environ: Mapping[str, str]
    report: ConfigReport

    def trace(self, name: str, place: SettingPath) -> Path | None:
        """Path of the trace. None if there is a problem, which is reported."""
        if not _is_bare(name):
            path = self.scenario_directory / name
            if path.is_dir():
                self.report.add_problem(place, f'"{path}" is a directory; specify a file in it')
            elif not path.is_file():
                self.report.add_problem(place, f'file "{path}" does not exist; paths are relative to the scenario file')
            return path
        found = _first_file(self._folder(), name, _TRACE_SUFFIXES)
        if found is None:
            end = next((end for begin, end in _PUBLIC_SUFFIXES.items() if name.startswith(begin)), _TRACE_SUFFIXES[0])
            problem = self._nearby_hint(name) or self._missing_hint(name, (_TRACE_SUFFIXES,), name + end)
            self.report.add_problem(place, problem)
        return found

    def servegen(self, name: str, place: SettingPath) -> tuple[Path, Path] | None:
        """Files with client rates and request lengths. None if there is a problem, which is reported."""
        is_path = "/" in name
        folder, name = (self.scenario_directory, name) if is_path else (self._folder(), _SERVEGEN + name)
        rates, lengths = (_first_file(folder, name, ends) for ends in _SERVEGEN_SUFFIXES)
        if rates is not None and lengths is not None:
            return rates, lengths
        if is_path:
            ends = f"{_RATES_SUFFIXES[1]} and {_LENGTHS_SUFFIXES[1]}"
            problem = f'files "{self.scenario_directory / name}" with the suffixes {ends} do not exist'
            self.report.add_problem(place, f"{problem}; paths are relative to the scenario file")
        else:
            needed = f"both {name}{_RATES_SUFFIXES[0]} and {name}{_LENGTHS_SUFFIXES[0]}"
            self.report.add_problem(place, self._missing_hint(name, _SERVEGEN_SUFFIXES, needed))
        return None

    def _folder(self) -> Path | None:
        """Directory of public traces. None if $HEADGATE_DATA is not set."""
        data = self.environ.get(DATA_VARIABLE)
        return Path(data) / _FOLDER if data else None

    def _nearby_hint(self, name: str) -> str | None:
        """Message about a bare name that probably refers to a file next to the scenario."""
        if near := _first_file(self.scenario_directory, name, _TRACE_SUFFIXES):
            return f'public trace "{name}" does not exist; did you mean {near.name}?'
        if (self.scenario_directory / name).is_dir():
            return f'"{self.scenario_directory / name}" is a directory; specify a file in it'
        if (self.scenario_directory / name).is_file():
            return f'public trace "{name}" does not exist; did you mean ./{name}?'
        return None

    def _missing_hint(self, name: str, kinds: tuple[tuple[str, ...], ...], needed: str) -> str:
        """Message about a missing public trace. `kinds` contains the suffixes of its files."""
        folder = self._folder()
        if folder is None:
            return (
                f'public trace "{name}" is in ${DATA_VARIABLE}/{_FOLDER}, but {DATA_VARIABLE} is not set; '
                f"put {needed} into DIRECTORY/{_FOLDER} and export {DATA_VARIABLE}=DIRECTORY{_source(name)}"
            )
        above = folder.parent
        if above.name == _FOLDER and all(_first_file(above, name, ends) for ends in kinds):
            return (
                f'trace "{name}" is in ${DATA_VARIABLE} itself, not in {folder}; export {DATA_VARIABLE}={above.parent}'
            )
        others = [each for each in _names_in(folder, kinds[0]) if each != name]  # One of the two files may exist.
        hint = suggestion(name, others, otherwise=f"; put {needed} there{_source(name)}")
        return f'trace "{name}" does not exist in {folder}{hint}'


def _is_bare(name: str) -> bool:
    return "/" not in name and not name.endswith(_TRACE_SUFFIXES)


def _first_file(folder: Path | None, name: str, ends: tuple[str, ...]) -> Path | None:
    return folder and next((path for end in ends if (path := folder / (name + end)).is_file()), None)


def _names_in(folder: Path, ends: tuple[str, ...]) -> list[str]:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [each.name.removesuffix(end) for each in files for end in ends if each.name.endswith(end)]


def _source(name: str) -> str:
    source = next((source for begin, source in SOURCES.items() if name.startswith(begin)), None)
    return f" (source: {source})" if source else "; or use a file path"
