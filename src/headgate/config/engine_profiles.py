"""Engine profiles: the built-in ones by name, and others by the path of their file.

A profile file contains the speed and memory parameters of one engine, in the notation of `speed`. `headgate calibrate`
writes such files.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from headgate.config import schema_reader, yaml_document
from headgate.config.environment import References, read_small_file
from headgate.config.problems import ConfigErrors, ConfigProblem, ConfigReport, SettingPath
from headgate.config.quantities import short_duration_text
from headgate.config.schema_reader import suggestion
from headgate.config.section import Section
from headgate.config.setting_types import Positive
from headgate.control.options import FileStamp, file_stamp
from headgate.model.engine_profile import EngineProfile

_CALIBRATE: Final = "`headgate calibrate` measures it"
_SIZE_MAX: Final = 10**9
BYTES_MAX: Final = 64 * 1024

_Name = Annotated[str, Meta(extra={"next": "name the engine and its hardware, such as l40s-llama-8b"})]
_Step = Annotated[
    int,
    Meta(ge=1_000_000, extra={"reads": "fine", "next": f"set the fixed time per step, such as 13.2ms; {_CALIBRATE}"}),
]
_PerToken = Annotated[
    int, Meta(ge=0, extra={"reads": "fine", "next": f"set a short duration, such as 36.1us; {_CALIBRATE}"})
]
_Size = Annotated[int, Meta(ge=1, le=_SIZE_MAX, extra={"next": "set the engine's limit"})]


class ProfileFile(Section, frozen=True):
    name: _Name
    step: _Step
    prefill_token: _PerToken
    decode_sequence: _PerToken
    kv_token: _PerToken
    attention: _PerToken
    chunk_tokens: _Size
    sequences_max: _Size
    kv_tokens: _Size
    context_tokens: _Size
    block_tokens: Positive = 16
    async_scheduling: bool = False


def is_profile_file(name: str) -> bool:
    """Returns whether a profile is given by the path of its file instead of its name."""
    return "/" in name or name.endswith((".yaml", ".yml"))


@dataclass(frozen=True, slots=True)
class ProfileFinder:
    """The profiles that one configuration file may use."""

    built_in: Mapping[str, EngineProfile]
    folder: Path
    """Directory to which the paths of profile files are relative."""
    report: ConfigReport
    files: dict[Path, FileStamp]
    """Stamps of all files that the configuration depends on. Profile files are added."""

    def find(self, name: str, place: SettingPath) -> EngineProfile | None:
        """Returns the profile. Reports a problem and returns None if there is none."""
        if not is_profile_file(name):
            profile = self.built_in.get(name)
            if profile is None:
                known = f"; the profiles are {', '.join(self.built_in)}, or the path of a profile file"
                hint = suggestion(name, self.built_in, otherwise=known)
                self.report.add_problem(place, f'profile "{name}" does not exist{hint}')
            return profile
        path = self.folder / name
        self.files[path] = file_stamp(path)
        try:
            profile, self.files[path] = _read_profile(path)
        except ConfigErrors as errors:
            self.report.add_problem(place, "; ".join(str(each) for each in errors.problems))
            return None
        return profile


def named_profile(name: str, built_in: Mapping[str, EngineProfile]) -> EngineProfile:
    """Returns a built-in profile, or reads a profile file. Raises `ConfigErrors`."""
    report = ConfigReport("--profile")
    profile = ProfileFinder(built_in, Path(), report, {}).find(name, ())
    report.raise_if_invalid()
    assert profile is not None, "a missing profile is a problem"
    return profile


def read_profile(path: Path) -> EngineProfile:
    """Reads a profile file. Raises `ConfigErrors` with all problems."""
    return _read_profile(path)[0]


def profile_text(profile: EngineProfile, notes: Sequence[str] = ()) -> str:
    """The content of a profile file. `notes` become comments."""
    figures = {
        "name": yaml_document.quoted(profile.name),
        **speed_figures(profile),
        "chunk_tokens": profile.chunk_tokens,
        "sequences_max": profile.sequences_max,
        "kv_tokens": profile.kv_blocks * profile.block_tokens,
        "block_tokens": profile.block_tokens,
        "context_tokens": profile.context_tokens,
        "async_scheduling": str(profile.async_scheduling).lower(),
    }
    lines = [f"# {note}".rstrip() for note in notes] + [f"{name}: {value}" for name, value in figures.items()]
    return "\n".join(lines) + "\n"


def speed_figures(profile: EngineProfile) -> dict[str, str]:
    """The five time parameters in configuration file notation."""
    return {
        "step": short_duration_text(profile.step_ps),
        "prefill_token": short_duration_text(profile.prefill_token_ps),
        "decode_sequence": short_duration_text(profile.decode_sequence_ps),
        "kv_token": short_duration_text(profile.kv_token_ps),
        "attention": short_duration_text(profile.attention_ps),
    }


def _read_profile(path: Path) -> tuple[EngineProfile, FileStamp]:
    try:
        content, stamp = read_small_file(path, bytes_max=BYTES_MAX, use="a profile file")
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise _unreadable(path, "does not exist; create it with `headgate calibrate`, or correct the path") from None
    except UnicodeDecodeError:
        raise _unreadable(path, "is not UTF-8 text") from None
    except ValueError as error:
        raise _unreadable(path, str(error)) from None
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror}") from None
    report = ConfigReport(str(path))
    references = References(os.environ, path.parent)
    file = schema_reader.read(yaml_document.parse(text, report), ProfileFile, references, report)
    for setting, problem in _problems(file):
        report.add_problem((setting,), problem)
    report.raise_if_invalid()
    return _profile(file), stamp


def _problems(file: ProfileFile) -> Iterator[tuple[str, str]]:
    """Settings that no engine can have together."""
    if file.chunk_tokens < file.sequences_max:
        problem = (
            f"is {file.chunk_tokens}, less than sequences_max {file.sequences_max}, but every running sequence needs "
            "a token in each step; raise it, or lower sequences_max"
        )
        yield "chunk_tokens", problem
    held = file.kv_tokens // max(1, file.block_tokens) * file.block_tokens
    if held < file.context_tokens:
        problem = (
            f"is {held} tokens in blocks of {file.block_tokens}, less than context_tokens {file.context_tokens}; "
            "raise it, or lower context_tokens"
        )
        yield "kv_tokens", problem


def _profile(file: ProfileFile) -> EngineProfile:
    return EngineProfile(
        name=file.name,
        step_ps=file.step,
        prefill_token_ps=file.prefill_token,
        decode_sequence_ps=file.decode_sequence,
        kv_token_ps=file.kv_token,
        attention_ps=file.attention,
        chunk_tokens=file.chunk_tokens,
        sequences_max=file.sequences_max,
        kv_blocks=file.kv_tokens // file.block_tokens,
        block_tokens=file.block_tokens,
        context_tokens=file.context_tokens,
        async_scheduling=file.async_scheduling,
    )


def _unreadable(path: Path, problem: str) -> ConfigErrors:
    return ConfigErrors((ConfigProblem(str(path), None, "", problem),))
