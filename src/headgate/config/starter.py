"""What is a good first configuration for this engine and this kind of traffic?

Text with comments, made to be read and changed. What cannot be known here, such as how long an answer takes, is a guess
that the comments name as one.
"""

import json
import re
from dataclasses import dataclass
from textwrap import indent, wrap

from headgate.config.traffic_shapes import SHAPES


@dataclass(frozen=True, slots=True)
class EnginePool:
    """The engine that the file will name."""

    engine: str
    url: str
    served_model: str
    places: int
    places_reason: str
    """Where that number comes from, as a sentence."""
    api_key_variable: str | None = None
    """The environment variable that holds the engine's key."""


EXAMPLE = EnginePool(
    engine="vllm",
    url="http://127.0.0.1:8000",
    served_model="my-model",
    places=64,
    places_reason="A start for vLLM; for llama.cpp, its --parallel. `headgate doctor` compares it with the engine.",
)
"""What stands in for an engine that nobody has named."""

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._:/@+-]+")
_FILE = """\
# Headgate, shape "{shape}": {purpose}.
# Written by `headgate init`; every number is meant to be changed. `headgate check` says what the file means,
# `headgate doctor` compares it with the engines, SIGHUP makes a running gateway read it again.

# Where callers connect: their base_url is http://127.0.0.1:8080/v1. For other machines 0.0.0.0:8080, with keys.
listen: 127.0.0.1:8080
# For operators: status, metrics, readiness. It asks for no key, so keep it inside.
admin_listen: 127.0.0.1:9090
# How long open requests may go on after SIGTERM: {drain_reason}.
drain_grace: {drain_grace}

pools:
  main:
{pool}
models:
  # The name that callers use, and the pools that serve it.
  {model}: main

{classes}
# Who may call. Requests without a key belong to the tenant "laptop", which is for trying things out. For more than that
# `headgate keys secret` and `headgate keys new --tenant NAME --write` make keys; then take out anonymous_tenant.
tenants:
  laptop: {{}}
anonymous_tenant: laptop

# `headgate explain ID` tells what became of the last requests; with a folder for a day, also after a restart.
# records: {{folder: /var/lib/headgate/records}}
# With a folder for its state, the gateway keeps the learned speeds of the engines across restarts.
# state_folder: /var/lib/headgate/state
"""


def starter(shape: str, pool: EnginePool) -> str:
    """The text of the file."""
    chosen = SHAPES[shape]
    return _FILE.format(
        shape=shape,
        purpose=chosen.purpose,
        drain_grace=chosen.drain_grace,
        drain_reason=chosen.drain_reason,
        pool=indent(_pool(pool), "    "),
        model=_quoted(public_name(pool.served_model)),
        classes=chosen.section(pool.places),
    )


def public_name(served_model: str) -> str:
    """A model's name that callers can use: some engines call it by the path of its file."""
    name = served_model
    if name.endswith(".gguf") or name.startswith(("/", ".")):
        name = name.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    return _NOT_IN_A_NAME.sub("-", name).lstrip("._:/@+-").rstrip("-")[:256] or "model"


def _pool(pool: EnginePool) -> str:
    reason = f"{pool.places_reason} What exceeds it waits here, where its order can still change."
    lines = [
        f"engine: {pool.engine}",
        "# What the engine calls the model.",
        f"served_model: {_quoted(pool.served_model)}",
        *wrap(reason, width=110, initial_indent="# ", subsequent_indent="# "),
        f"in_flight_max: {pool.places}",
    ]
    if pool.api_key_variable is not None:
        lines += ["# What the engine asks for, from the environment.", f"api_key: ${{{pool.api_key_variable}}}"]
    lines += ["endpoints:", f"  - {pool.url}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """As YAML has it, where `${` would begin the name of a variable. Every JSON string is one of YAML."""
    return json.dumps(text, ensure_ascii=False).replace("${", "$${")
