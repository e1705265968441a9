"""Imports LiteLLM's spend logs, exported as CSV from the table `LiteLLM_SpendLogs`.

Requests that LiteLLM answered from its own cache are kept: an engine without that cache has to compute them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate.model.ticket import Api
from headgate.planning.recording import imported_values as values
from headgate.planning.recording.import_csv import Columns, ImportCounts, csv_rows
from headgate.ports.traffic import TrafficRow

COLUMNS: Final[Columns] = MappingProxyType(
    {
        "at": ("startTime",),
        "prompt_tokens": ("prompt_tokens",),
        "output_tokens": ("completion_tokens",),
        "model": ("model_group", "model"),
        "tenant": ("team_id", "user", "api_key"),
        "outcome": ("status",),
    }
)
_APIS: Final = (
    ("embedding", Api.EMBEDDINGS),
    ("rerank", Api.RERANK),
    ("text_completion", Api.COMPLETIONS),
    ("anthropic_messages", Api.MESSAGES),
    ("responses", Api.RESPONSES),
    ("completion", Api.CHAT),
)
"""Part of a `call_type`, and its API. The first match applies."""


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens_details: _PromptDetails | None = None
    cache_read_input_tokens: int | None = None


class _Metadata(Struct):
    usage_object: _Usage | None = None


_metadata: Final = msgspec.json.Decoder(_Metadata)


def litellm_rows(path: Path, columns: Columns, counts: ImportCounts) -> Iterator[TrafficRow]:
    """`columns` overrides the columns of some fields."""
    return csv_rows(path, {**COLUMNS, **columns}, counts, _complete)


def _complete(cells: Mapping[str, str], fields: dict[str, Any]) -> bool:
    """Adds the fields that are derived from several columns. Returns False for calls without tokens, such as images."""
    call = cells.get("call_type", "") or "completion"
    api = next((api for part, api in _APIS if part in call), None)
    if api is None:
        return False
    fields.setdefault("api", api.value)
    fields.setdefault("stream", _is_streamed(cells))
    fields.setdefault("cached_tokens", _cached_tokens(cells.get("metadata", "")))
    return True


def _is_streamed(cells: Mapping[str, str]) -> bool:
    """Without streaming, LiteLLM records the end of the response as the time of its first token."""
    first, end = cells.get("completionStartTime", ""), cells.get("endTime", "")
    try:
        return bool(first and end) and values.time_us(first) < values.time_us(end)
    except ValueError:
        return False


def _cached_tokens(metadata: str) -> int:
    try:
        usage = _metadata.decode(metadata).usage_object
    except (msgspec.DecodeError, RecursionError):
        return 0
    if usage is None:
        return 0
    details = usage.prompt_tokens_details
    found = (None if details is None else details.cached_tokens) or usage.cache_read_input_tokens or 0
    return min(max(0, found), values.TOKENS_MAX)
