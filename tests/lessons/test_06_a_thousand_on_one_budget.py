"""A thousand concurrent requests exceed a budget by at most one reservation.

A gateway that only checks the amount already spent before admitting a request would admit all thousand before the first
one has a cost. Headgate reserves the maximum cost of a request at admission and settles it at the end, so a budget is
exceeded by at most one reservation.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.core.commands import Command, End
from headgate.core.events import Event
from headgate.model.money import NANO_USD_PER_USD, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.units import Instant
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop
from testing.midnight import wait_past_midnight
from testing.simulated_engines import engine_in_loop, simulated_engines

AT_ONCE = 1_000
FEW = 100
"""Number of concurrent requests in the short test. The budget is scaled in proportion."""
TOKENS = 16
BY_TOKENS = {"input_per_1m_tokens": 1, "output_per_1m_tokens": 100}
BY_THE_HOUR = {"per_hour": 36}
CLASSES = {"interactive": {"degradation_steps": [{"level": 2, "caps": {"output_tokens": 4}}]}}


class Ends:
    """Observer that records the reservation and cost of every request."""

    def __init__(self) -> None:
        self.ends: list[End] = []

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        self.ends += [each for each in commands if isinstance(each, End)]

    @property
    def reserved_most_usd(self) -> float:
        return max(each.reserved for each in self.ends) / NANO_USD_PER_USD

    @property
    def billed_usd(self) -> float:
        cost = NanoUsd(
            sum(
                bill.input_nano_usd + bill.output_nano_usd + bill.overhead_nano_usd
                for each in self.ends
                for bill in each.bills
            )
        )
        return cost / NANO_USD_PER_USD


@asynccontextmanager
async def an_engine(at_once: int) -> AsyncIterator[str]:
    """Run an engine in this event loop, or as a process if the gateway alone keeps the loop busy."""
    if at_once <= FEW:
        async with engine_in_loop() as url:
            yield url
    else:
        with simulated_engines(1) as [url]:
            yield url


@asynccontextmanager
async def spending(
    url: str,
    folder: Path,
    price: Mapping[str, Any],
    limit_usd: float,
    ends: Ends,
    *,
    kind: str = "hard",
    classes: Mapping[str, Any] = CLASSES,
) -> AsyncIterator[GatewayInLoop]:
    config = a_config(url, served_model="sim", in_flight_max=256)
    config["pools"]["small"]["prices"] = [dict(price)]
    config["tenants"] = {"laptop": {"budgets": {"day": {"usd": limit_usd, "kind": kind}}}}
    config["classes"] = dict(classes)
    config["limits"] = {"connections_open_max": 4 * AT_ONCE, "header_timeout": "60s"}
    wait_past_midnight()
    async with gateway_in_loop(config, folder, observers=(ends,)) as gateway:
        yield gateway


async def asked(gateway: GatewayInLoop, content: str = "hi") -> tuple[int, Mapping[str, str], str]:
    async with gateway.post(chat(content, max_tokens=TOKENS, stream=True)) as answer:
        return answer.status, answer.headers, await answer.text()


async def budget_of(gateway: GatewayInLoop) -> dict[str, Any]:
    async with gateway.http.get(gateway.url + "/v1/usage") as answer:
        [budget] = (await answer.json())["budgets"]
        return budget


@pytest.mark.parametrize("at_once", [FEW, pytest.param(AT_ONCE, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("price", "limit_usd"), [(BY_TOKENS, 0.05), (BY_THE_HOUR, 0.5)], ids=["per token", "per hour"])
async def test_concurrent_requests_exceed_the_budget_by_at_most_one_reservation(
    tmp_path: Path, price: Mapping[str, Any], limit_usd: float, at_once: int
) -> None:
    ends = Ends()
    limit_usd = round(limit_usd * at_once / AT_ONCE, 6)
    async with an_engine(at_once) as url:
        async with spending(url, tmp_path, price, limit_usd, ends) as gateway:
            rounds = [await asyncio.gather(*(asked(gateway) for _ in range(at_once))) for _ in range(2)]
            await gateway.wait_until_idle()
            budget = await budget_of(gateway)

    answers = [each for one in rounds for each in one]
    seen = Counter(status for status, _, _ in answers)
    over_usd = budget["spent_usd"] - limit_usd
    print(
        f"\n{dict(seen)}; spent ${budget['spent_usd']:.6f} of ${limit_usd}, "
        f"largest reservation ${ends.reserved_most_usd:.6f}"
    )
    assert seen.keys() == {200, 429}
    assert seen[200] >= 2
    assert over_usd <= ends.reserved_most_usd
    assert budget["reserved_usd"] == 0
    assert budget["spent_usd"] == pytest.approx(ends.billed_usd, abs=1e-9)
    assert {each.outcome for each in ends.ends} == {Outcome.COMPLETED, Outcome.BUDGET_EXCEEDED}
    _, headers, body = next(each for each in answers if each[0] == 429)
    error = json.loads(body)["error"]
    assert error["code"] == error["type"] == "insufficient_quota"
    assert headers["x-should-retry"] == "false"
    assert 1 <= int(headers["Retry-After"]) <= 3_600
    assert 'tenant "laptop" has spent ' in error["message"]
    assert " per day, " in error["message"]


async def test_soft_budget_admits_all_requests_and_reports_degradation(tmp_path: Path) -> None:
    ends = Ends()
    async with engine_in_loop() as url:
        async with spending(url, tmp_path, BY_TOKENS, 0.0001, ends, kind="soft") as gateway:
            answers = [await asked(gateway) for _ in range(10)]
            budget = await budget_of(gateway)

    assert [status for status, _, _ in answers] == [200] * 10
    assert [headers["x-headgate-degraded"] for _, headers, _ in answers] == ["none"] + ["output_tokens=4, level=6"] * 9
    assert (budget["kind"], budget["remaining_usd"]) == ("soft", 0)
    assert budget["spent_usd"] > budget["limit_usd"]


async def test_cost_cap_shortens_output_or_rejects_the_request(tmp_path: Path) -> None:
    ends = Ends()
    cheap = {"interactive": {"optimize_for": "cost", "cost_per_request_max": 0.0007}}
    async with engine_in_loop() as url:
        async with spending(url, tmp_path, BY_TOKENS, 9, ends, classes=cheap) as gateway:
            status, refused, body = await asked(gateway, "word " * 700)
            _, headers, _ = await asked(gateway)

    assert headers["x-headgate-degraded"] == "output_tokens=6"
    assert max(each.reserved for each in ends.ends) <= 0.0007 * NANO_USD_PER_USD
    assert status == 429, body
    assert refused["x-should-retry"] == "false"
    assert refused["Retry-After"] == "3600", "waiting would not help, so Retry-After is the maximum"
    assert "the prompt and one output token cost up to" in json.loads(body)["error"]["message"]
