"""Converts a source: recognizes its format, calls the reader, and checks the result."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from headgate.config.convert.draft import Draft
from headgate.config.convert.envoy import EnvoyReader
from headgate.config.convert.envoy_resources import is_envoy
from headgate.config.convert.inference_pool import InferencePoolReader
from headgate.config.convert.kubernetes_objects import is_inference_manifest
from headgate.config.convert.litellm import LitellmReader
from headgate.config.convert.litellm_accounts import AccountReader
from headgate.config.convert.nginx import NginxReader
from headgate.config.convert.nginx_settings import NginxSettings
from headgate.config.convert.nginx_syntax import parse_directives
from headgate.config.convert.source import SOURCE_BYTES_MAX, ConversionError, ConversionNote, SourceFile, YamlSource
from headgate.config.convert.writer import complete, file_text
from headgate.config.environment import read_file
from headgate.config.load import parse
from headgate.config.problems import ConfigErrors
from headgate.model.engine_profile import EngineProfile

DEFAULT_ENGINE: Final = "openai_compatible"
_NGINX_BLOCK: Final = re.compile(r"^\s*(http|server|upstream\s+[^\s{]+|location\s+[^{\n]*)\s*\{", re.MULTILINE)
_PLACEHOLDER_SECRET: Final = "placeholder-for-the-check"


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    environ: Mapping[str, str]
    engines: Collection[str]
    profiles: Mapping[str, EngineProfile]
    engine: str | None = None
    """Engine of endpoints whose engine the source does not name."""
    models: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Model name for each pool of a source that has no model names. The key "" applies to all pools."""
    key_secret: bytes | None = field(default=None, repr=False)
    accounts: Sequence[Path] = ()
    """Files with teams and keys of a LiteLLM proxy."""


@dataclass(frozen=True, slots=True)
class Conversion:
    source_format: str
    text: str
    """Text of the configuration file."""
    notes: Sequence[ConversionNote]
    variables: Mapping[str, str]
    """Environment variables that the configuration needs, with their meaning."""


def convert(path: Path, options: ConversionOptions, source_format: str | None = None) -> Conversion:
    """Converts a file; by default, its content determines the format. Raises `ConversionError`."""
    return convert_text(read_source(path), path.name, options, source_format)


def convert_text(text: str, name: str, options: ConversionOptions, source_format: str | None = None) -> Conversion:
    """Like `convert`, for the text of a file. `name` is the file name used in messages."""
    draft = Draft(SourceFile(name))
    found = source_format or recognized_format(text, name)
    FORMATS[found](text, draft, options)
    draft.file.notes[:] = dict.fromkeys(draft.file.notes)
    draft.file.notes.sort(key=lambda each: (each.file != name, each.file, each.line or 0))
    if not draft.models():
        lost = [each.message for each in draft.file.notes if not each.changed]
        reasons = "; ".join(list(dict.fromkeys(lost))[:3])
        raise ConversionError(f"{name}: has no engine that Headgate can use{': ' * bool(reasons)}{reasons}")
    complete(draft)
    title = f"Headgate configuration, converted by `headgate convert` from {name} ({found}). Review it before use."
    result = file_text(draft, title)
    _check(result, draft, options)
    return Conversion(found, result, draft.file.notes, draft.variables)


def read_source(path: Path) -> str:
    """Reads a source file. Raises `ConversionError`."""
    try:
        if path.stat().st_size > SOURCE_BYTES_MAX:
            raise ConversionError(f"{path}: is larger than {SOURCE_BYTES_MAX // 2**20} MiB; convert a part of it")
        return read_file(path)[0].decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConversionError(f"{path}: is not UTF-8 text") from None
    except OSError as error:
        raise ConversionError(f"{path}: cannot be read: {error.strerror}") from None


def recognized_format(text: str, name: str) -> str:
    """The format of a source. Raises `ConversionError`."""
    if _NGINX_BLOCK.search(text):
        return "nginx"
    for each in YamlSource(SourceFile(name), text).documents():
        names = set(each.names())
        if not names.isdisjoint({"model_list", "litellm_settings", "router_settings"}):
            return "litellm"
        if is_envoy(each):
            return "envoy"
        if is_inference_manifest(each):
            return "inferencepool"
    raise ConversionError(f"{name}: has an unknown format; name it with --from, one of {', '.join(FORMATS)}")


def _litellm(text: str, draft: Draft, options: ConversionOptions) -> None:
    source = YamlSource(draft.file, text)
    accounts = AccountReader(draft, options.key_secret)
    for root in source.documents():
        LitellmReader(draft, accounts, options.environ, options.engine).read(root)
    source.drop_unread()
    for path in options.accounts:
        exported = YamlSource(SourceFile(path.name, draft.file.notes), read_source(path))
        accounts.read(exported)
        exported.drop_unread()


def _nginx(text: str, draft: Draft, options: ConversionOptions) -> None:
    engine = options.engine or DEFAULT_ENGINE
    settings = NginxSettings(draft, includes_are_expanded="# configuration file " in text)
    NginxReader(draft, engine, options.models, settings).read(parse_directives(text, draft.file))


def _envoy(text: str, draft: Draft, options: ConversionOptions) -> None:
    source = YamlSource(draft.file, text)
    EnvoyReader(draft, options.engine or DEFAULT_ENGINE, options.models).read(list(source.documents()))
    source.drop_unread()


def _inference_pool(text: str, draft: Draft, options: ConversionOptions) -> None:
    source = YamlSource(draft.file, text)
    reader = InferencePoolReader(draft, options.engine or DEFAULT_ENGINE, options.models)
    reader.read(list(source.documents()))
    source.drop_unread()


FORMATS: Final[Mapping[str, Callable[[str, Draft, ConversionOptions], None]]] = MappingProxyType(
    {"litellm": _litellm, "nginx": _nginx, "envoy": _envoy, "inferencepool": _inference_pool}
)


def _check(text: str, draft: Draft, options: ConversionOptions) -> None:
    """Raises `ConversionError` if the result is not a valid configuration."""
    environ = dict.fromkeys(draft.variables, _PLACEHOLDER_SECRET)
    try:
        parse(text, "headgate.yaml", environ, engines=options.engines, profiles=options.profiles)
    except ConfigErrors as errors:
        problem = errors.problems[0]
        message = f"the result is not valid: {problem.setting}: {problem.message}; correct the source, or report this"
        raise draft.file.error(None, "", message) from None
