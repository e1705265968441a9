"""Settings for live incidents: sizes, speeds and the gateway configuration."""

import secrets
from collections.abc import Sequence
from typing import Any

from bench.policy.fleet import speed_of
from headgate.core.cost import cost_ns
from headgate.model.engine_profile import PROFILES
from headgate.model.units import SECOND
from headgate.wire.keys import digest, format_digest
from testing import real_engines
from testing.gateway import Config, a_config

PROFILE = PROFILES["h100x8-llama-70b"]
SPEED = speed_of(PROFILE)
MODEL = "sim"
LLAMA_MODEL = real_engines.MODEL
POOL = "main"
ENGINES = 2
LOAD = 0.4
"""Normal load as a share of the engine capacity."""
TENANTS = ("acme", "bolt")
SECRET_NAME = "HEADGATE_KEY_SECRET"


def request_s(prompt_tokens: int = 2_000, output_tokens: int = 20) -> float:
    """Engine time of one request, in seconds."""
    return cost_ns(SPEED, prompt_tokens, output_tokens) / SECOND


def rate(load: float, engines: int = ENGINES) -> float:
    """Requests per second at a given share of the engine capacity."""
    return load * engines / request_s()


class Keys:
    """Tenant keys and the secret for their digests in the configuration."""

    def __init__(self) -> None:
        self.secret = secrets.token_urlsafe(32)
        self.of = {tenant: f"hg-{secrets.token_urlsafe(32)}" for tenant in TENANTS}

    def tenants(self) -> dict[str, Any]:
        return {tenant: {"keys": [format_digest(digest(self.secret.encode(), key))]} for tenant, key in self.of.items()}


def llama_configuration(urls: Sequence[str], keys: Keys) -> Config:
    """Configuration for llama.cpp on a CPU, with no configured speed and targets that a loaded machine can meet."""
    config = configuration(urls, keys, served_model=LLAMA_MODEL, in_flight_max=4)
    del config["pools"][POOL]["speed"]
    config["classes"]["interactive"] |= {"ttft": "10s", "tpot": "2s", "queue_wait_max": "20s"}
    return config


def configuration(urls: Sequence[str], keys: Keys, **pool: Any) -> Config:
    """Configuration with one pool of these endpoints. `pool` overrides its settings."""
    config = a_config(
        served_model=MODEL,
        model=MODEL,
        classes={
            "interactive": {"priority_band": 0, "ttft": "2s", "tpot": "200ms", "queue_wait_max": "5s"},
            "batch": {"priority_band": 1, "queue_wait_max": "120s"},
        },
    )
    small = config["pools"].pop("small")
    config["pools"] = {POOL: {**small, "endpoints": list(urls), "in_flight_max": 64, "speed": PROFILE.name, **pool}}
    config["models"] = {MODEL: POOL}
    config["tenants"] = keys.tenants()
    del config["anonymous_tenant"]
    config["key_secret"] = f"${{{SECRET_NAME}}}"
    return config
