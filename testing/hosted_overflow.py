"""Configuration of a gateway with an own engine and a hosted provider, and what it says about its requests."""

from typing import Any

from headgate.wire.keys import digest, format_digest
from testing.gateway import Config, RunningGateway, a_config

SECRET = "a secret that is only for tests"
BANK_KEY = "hg-bank"
"""Key of the tenant whose requests must not leave the own engines."""
PRICES = {"input_per_1m_tokens": 1, "output_per_1m_tokens": 2}


def overflow_config(own: str, provider: str, *, served_model: str, api_key: str, **overflow: Any) -> Config:
    """One slot at the own engine in the pool `small`, and eight at the provider in the pool `cloud`."""
    config = a_config(own, in_flight_max=1)
    config["pools"]["cloud"] = {
        "engine": "provider",
        "endpoints": [provider],
        "in_flight_max": 8,
        "served_model": served_model,
        "api_key": api_key,
        "prices": dict(PRICES),
    }
    config["models"] = {"m": {"pools": "small", "overflow": {"pools": "cloud", "after": "100ms"} | overflow}}
    config["key_secret"] = SECRET
    config["tenants"]["bank"] = {
        "data_residency": "local",
        "keys": [format_digest(digest(SECRET.encode(), BANK_KEY))],
    }
    return config


async def steps_of(gateway: RunningGateway, request_id: str) -> list[dict[str, Any]]:
    """The steps in the explanation of a request."""
    async with gateway.http.get(f"{gateway.admin_url}/explain/{request_id}") as answer:
        return (await answer.json())["steps"]


async def last_dispatch(gateway: RunningGateway, request_id: str) -> dict[str, Any]:
    return [step for step in await steps_of(gateway, request_id) if step["kind"] == "dispatched"][-1]
