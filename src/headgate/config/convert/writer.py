"""Writes a draft as a configuration file with comments."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Final

from headgate.config.convert.draft import (
    ANONYMOUS_TENANT,
    IN_FLIGHT_ESTIMATE,
    Draft,
    DraftPath,
    EndpointDraft,
    PoolDraft,
    Setting,
)
from headgate.config.convert.source import ConversionNote
from headgate.config.yaml_document import quoted
from headgate.wire.escape import escaped

NOTES_MAX: Final = 500
_WIDTH: Final = 118
_PLAIN: Final = re.compile(r"(?!-|null$|Null$|NULL$)[A-Za-z0-9_./-][A-Za-z0-9_./@+-]*(:[A-Za-z0-9_./@+-]+)*")
_REFERENCE: Final = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_ORDER: Final = (
    "listen",
    "admin_listen",
    "listen_tls",
    "pools",
    "models",
    "classes",
    "class_rules",
    "key_secret",
    "tenants",
    "anonymous_tenant",
    "limits",
    "retry",
    "health",
)


def complete(draft: Draft) -> None:
    """Adds pools, models, listeners and the default tenant to the settings."""
    draft.put(("listen",), "127.0.0.1:8080")
    draft.put(("admin_listen",), "127.0.0.1:9090")
    draft.comment(("listen",), "Only this machine can connect, so that the gateway can run beside its predecessor.")
    models: dict[str, list[str]] = {}
    for name, endpoints in draft.pools().items():
        _put_pool(draft, name, endpoints)
        for model in endpoints[0].models:
            models.setdefault(model, []).append(name)
    for model, pools in models.items():
        section: dict[str, Setting] = {"pools": _single(pools)}
        fallbacks = [each for each in dict.fromkeys(draft.fallbacks.get(model, ())) if each in models and each != model]
        if fallbacks:
            section["fallbacks"] = _single(fallbacks)
        draft.put(("models", model), section if len(section) > 1 else section["pools"])
    if not draft.key_reason:
        tenant = draft.get(("tenants", ANONYMOUS_TENANT))
        draft.put(("tenants", ANONYMOUS_TENANT), tenant or {})
        draft.put(("anonymous_tenant",), ANONYMOUS_TENANT)
        draft.comment(("anonymous_tenant",), "Requests without a key belong to this tenant.")
    else:
        draft.comment(("tenants",), f"Clients need a key: {draft.key_reason}.")


def _single(names: Sequence[str]) -> Setting:
    return names[0] if len(names) == 1 else list(names)


def _put_pool(draft: Draft, name: str, endpoints: Sequence[EndpointDraft]) -> None:
    pool = endpoints[0].pool
    section: dict[str, Setting] = {"engine": pool.engine}
    if pool.served_model is not None:
        section["served_model"] = pool.served_model
    elif len(endpoints[0].models) > 1:
        section["served_model"] = next(iter(endpoints[0].models))
    if pool.api_key is not None:
        section["api_key"] = f"${{{pool.api_key}}}"
    limits = Counter(each.in_flight_max or IN_FLIGHT_ESTIMATE for each in endpoints)
    usual = limits.most_common(1)[0][0]
    section["in_flight_max"] = str(usual)
    if any(each.in_flight_max is None for each in endpoints):
        estimate = f"{IN_FLIGHT_ESTIMATE} is an estimate for engines with continuous batching. "
        draft.comment(("pools", name, "in_flight_max"), estimate + "Set the number of requests that the engine runs.")
    section |= _optional_sections(pool)
    if not pool.fleet:
        section["endpoints"] = [_endpoint(each, usual) for each in endpoints]
    draft.put(("pools", name), section)


def _optional_sections(pool: PoolDraft) -> dict[str, Setting]:
    sections: Mapping[str, Setting] = {
        "tls": dict(pool.tls),
        "prices": [dict(pool.prices)] if pool.prices else [],
        "fleet": dict(pool.fleet),
    }
    return {name: value for name, value in sections.items() if value}


def _endpoint(endpoint: EndpointDraft, usual: int) -> Setting:
    limit = endpoint.in_flight_max or IN_FLIGHT_ESTIMATE
    more: dict[str, Setting] = {} if limit == usual else {"in_flight_max": str(limit)}
    if endpoint.zone is not None:
        more["zone"] = endpoint.zone
    return {"url": endpoint.url, **more} if more else endpoint.url


def file_text(draft: Draft, title: str) -> str:
    """Text of the configuration file. The draft must be complete."""
    lines = [*_comment(title, "")]
    if draft.variables:
        lines += ["#", "# Set these environment variables before you start the gateway:"]
        lines += [
            line for name, meaning in draft.variables.items() for line in _comment(f"  {name}: {meaning}", "", "    ")
        ]
    for name in (*_ORDER, *(each for each in draft.settings if each not in _ORDER)):
        if name in draft.settings:
            lines += ["", *_entry(name, draft.settings[name], (name,), draft.comments, "")]
    for heading, changed in (("Changed", True), ("Not carried over", False)):
        notes = [each for each in draft.file.notes if each.changed is changed]
        if notes:
            lines += ["", f"# {heading}:", *_note_lines(notes)]
    if draft.manifests:
        lines += ["", "# Create these objects in the cluster, without the comment signs:"]
        for number, manifest in enumerate(draft.manifests):
            lines += [f"# {line}" for line in (*(["---"] if number else []), *manifest)]
    return "\n".join(lines) + "\n"


def _note_lines(notes: Sequence[ConversionNote]) -> Iterator[str]:
    for each in notes[:NOTES_MAX]:
        where = each.file if each.line is None else f"{each.file}:{each.line}"
        yield from _comment(f"- {where}: {each.setting}: {each.message}", "", "  ")
    if len(notes) > NOTES_MAX:
        yield f"# - and {len(notes) - NOTES_MAX} more, which `headgate convert` prints"


def _entry(
    name: str, value: Setting, path: DraftPath, comments: Mapping[DraftPath, list[str]], indent: str
) -> Iterator[str]:
    for comment in dict.fromkeys(comments.get(path, ())):
        yield from _comment(comment, indent)
    key = name if _PLAIN.fullmatch(name) and ":" not in name else quoted(name)
    match value:
        case str():
            yield f"{indent}{key}: {_scalar(value)}"
        case {} if not value:
            yield f"{indent}{key}: {{}}"
        case dict():
            yield f"{indent}{key}:"
            for inner, each in value.items():
                yield from _entry(inner, each, (*path, inner), comments, indent + "  ")
        case list():
            yield f"{indent}{key}:"
            for each in value:
                yield from _item(each, indent + "  ")


def _item(value: Setting, indent: str) -> Iterator[str]:
    if isinstance(value, dict):
        first, *others = (line for name, each in value.items() for line in _entry(name, each, (), {}, ""))
        yield f"{indent}- {first}"
        yield from (f"{indent}  {line}" for line in others)
    else:
        assert isinstance(value, str)
        yield f"{indent}- {_scalar(value)}"


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) or _REFERENCE.fullmatch(text) else quoted(text)


def _comment(text: str, indent: str, hanging: str = "") -> list[str]:
    width = _WIDTH - len(indent)
    lines = wrap(escaped(text), width, initial_indent="# ", subsequent_indent=f"# {hanging}", break_on_hyphens=False)
    return [indent + line for line in lines]
