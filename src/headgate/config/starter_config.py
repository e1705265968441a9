"""The first configuration file for a given engine and kind of traffic, written by `headgate init`.

The text contains comments for whoever edits it. Values that cannot be known, such as the duration of a response, are
marked as estimates.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent, wrap

from headgate.config.references import is_model_name
from headgate.config.traffic_shapes import SHAPES
from headgate.config.yaml_document import quoted
from headgate.ports.tls import ClientTlsOptions


@dataclass(frozen=True, slots=True)
class StarterPool:
    """Engine of the first pool."""

    engine: str
    url: str
    served_model: str
    in_flight_max: int
    in_flight_reason: str
    """Sentence explaining where `in_flight_max` comes from."""
    api_key_variable: str | None = None
    """Environment variable that contains the engine's API key."""
    tls: ClientTlsOptions | None = None
    adapters: tuple[str, ...] = ()
    """LoRA adapters of the engine. Those whose names cannot be those of models are left out."""
    max_lora: int | None = None
    """Maximum number of adapters in use at the same time, if the engine reports it."""


EXAMPLE_POOL = StarterPool(
    engine="vllm",
    url="http://127.0.0.1:8000",
    served_model="my-model",
    in_flight_max=64,
    in_flight_reason="An estimate for vLLM. For llama.cpp, use --parallel. `headgate doctor` checks it.",
)
"""Placeholder used if no engine was given."""

_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9._:/@+-]+")
_FILE = """\
# Headgate, traffic "{shape}": {purpose}.
# Written by `headgate init`. Adjust every number to your needs. `headgate check` shows the resulting configuration,
# `headgate doctor` compares it with the engines, and SIGHUP makes a running gateway reload it.

# API listener: clients use http://127.0.0.1:8080/v1 as base_url. To allow other machines, use 0.0.0.0:8080, with keys.
listen: 127.0.0.1:8080
# Admin listener: status, metrics and readiness. It requires no key, so do not expose it.
admin_listen: 127.0.0.1:9090
# Time for open requests to finish after SIGTERM: {drain_reason}.
drain_grace: {drain_grace}

pools:
  main:
{pool}
models:
  # Model name in requests, and the pools that serve it.
  {model}: main

{classes}
# Callers. Requests without a key belong to the tenant "laptop", which is meant for first tests. For production, create
# keys with `headgate keys secret` and `headgate keys new --tenant NAME --write`, and remove anonymous_tenant.
tenants:
  laptop: {{}}
anonymous_tenant: laptop

# `headgate explain ID` explains recent requests. With a records directory, it covers a full day and survives restarts.
# records: {{directory: /var/lib/headgate/records}}
# With a state directory, the gateway keeps the learned engine speeds across restarts.
# state_directory: /var/lib/headgate/state
"""


def starter_config(shape: str, pool: StarterPool, *, directory: Path = Path()) -> str:
    """Text of the file. `directory` is the file's directory, to which the paths in it are relative."""
    chosen = SHAPES[shape]
    return _FILE.format(
        shape=shape,
        purpose=chosen.purpose,
        drain_grace=chosen.drain_grace,
        drain_reason=chosen.drain_reason,
        pool=indent(_pool(pool, directory), "    "),
        model=quoted(public_name(pool.served_model)),
        classes=chosen.classes_section(pool.in_flight_max),
    )


def public_name(served_model: str) -> str:
    """Model name for clients. Some engines use the path of the model file as the model name."""
    name = served_model
    if name.endswith(".gguf") or name.startswith(("/", ".")):
        name = name.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    return _INVALID_NAME_CHARS.sub("-", name).lstrip("._:/@+-").rstrip("-")[:256] or "model"


def _pool(pool: StarterPool, directory: Path) -> str:
    reason = f"{pool.in_flight_reason} Further requests wait in the gateway, where their order can still change."
    lines = [
        f"engine: {pool.engine}",
        "# The engine's name for the model.",
        f"served_model: {quoted(pool.served_model)}",
        *wrap(reason, width=110, initial_indent="# ", subsequent_indent="# "),
        f"in_flight_max: {pool.in_flight_max}",
    ]
    if pool.api_key_variable is not None:
        lines += ["# The engine's API key, from the environment.", f"api_key: ${{{pool.api_key_variable}}}"]
    if tls := _tls(pool.tls or ClientTlsOptions(), directory):
        lines += ["# Verification of the engine's certificate, and this gateway's client certificate.", "tls:", *tls]
    lines += _adapters(pool)
    lines += ["endpoints:", f"  - {pool.url}"]
    return "\n".join(lines) + "\n"


def _adapters(pool: StarterPool) -> list[str]:
    names = [each for each in pool.adapters if is_model_name(each) and each != public_name(pool.served_model)]
    if not names:
        return []
    reported = "reported by the engine" if pool.max_lora is not None else "the value of vLLM's --max-loras"
    return [
        "# The engine's LoRA adapters. Each is a model of its own. With `discover_adapters: true`, no list is needed.",
        "adapters:",
        *(f"  - {quoted(each)}" for each in names),
        f"# Number of distinct adapters in use at the same time: {reported}.",
        f"max_lora: {pool.max_lora or 1}",
    ]


def _tls(tls: ClientTlsOptions, directory: Path) -> list[str]:
    paths = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
    values = {name: _path_from(directory, path) for name, path in paths.items() if path is not None}
    if tls.server_name is not None:
        values["server_name"] = tls.server_name
    return [f"  {name}: {quoted(value)}" for name, value in values.items()]


def _path_from(directory: Path, path: str) -> str:
    """A path relative to the working directory, as a path relative to another directory or an absolute path."""
    return path if directory == Path() else str(Path(path).absolute())
