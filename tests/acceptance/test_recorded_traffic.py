"""Traffic that `headgate record` recorded at a live gateway, replayed in the simulator and by the load test."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from headgate.cli.input.admin_request import AdminTarget
from headgate.cli.input.live_traffic import LiveResult, LiveTraffic, start_recordings
from headgate.compose.simulation import SCHEDULERS, build_scenario
from headgate.config.scenarios.load import parse
from headgate.loadtest.schedule import from_trace
from headgate.loadtest.senders import SenderTable
from headgate.model.engine_profile import PROFILES
from headgate.model.outcome import Outcome
from headgate.planning.recording.pseudonyms import TenantPseudonyms
from headgate.planning.recording.trace_writer import TraceWriter, trace_file
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.workload.recorded_trace import TraceHeader, TraceTotals
from headgate.simulation.workload.trace_files import read_trace
from headgate.simulation.workload.trace_row import TraceRow
from headgate.wire.keys import digest, format_digest
from testing.gateway import Config, GatewayInLoop, a_config, gateway_in_loop
from testing.simulated_engines import engine_in_loop
from tests.loadtest.builders import a_plan, a_sender, ran

SECRET, OPERATOR = "only for these tests", "hg-operator"
TENANTS = ("acme/search", "acme/chat", "globex")
SCENARIO: Config = {
    "pools": {"main": {"engines": [{"profile": "tiny", "count": 1}], "in_flight_max": 8}},
    "classes": {"interactive": {}, "batch": {}},
}
SLOWER = 0.01
"""Speed of the replay. Each request ends before the next one arrives, as in the recording."""


def a_gateway_config(url: str) -> Config:
    def hashed(key: str) -> str:
        return format_digest(digest(SECRET.encode(), key))

    config = a_config(
        url,
        served_model="sim",
        model="fake",
        key_secret=SECRET,
        admin_keys={"ann": {"key": hashed(OPERATOR), "permissions": ["record"]}},
        tenants={name: {"keys": [hashed(f"hg-{name}")]} for name in TENANTS},
    )
    del config["anonymous_tenant"]
    return config


@asynccontextmanager
async def a_live_gateway(folder: Path, engine_record: Path | None = None) -> AsyncIterator[GatewayInLoop]:
    async with engine_in_loop(record=engine_record) as url, gateway_in_loop(a_gateway_config(url), folder) as gateway:
        yield gateway


def a_workload() -> list[TraceRow]:
    """Conversations that grow by one block each turn, of several tenants and classes, with and without streaming."""
    rows = []
    for turn in range(1, 4):
        for number, tenant in enumerate(TENANTS):
            # The first block is common to all, but tenants do not share caches.
            names = (1, *(100 * number + block for block in range(2, turn + 1)))
            rows.append(
                TraceRow(
                    len(rows) * 1_000_000,
                    prompt_tokens=512 * turn + 40 + number,
                    output_tokens=3 + number,
                    service_class="batch" if number == 1 else "interactive",
                    tenant=tenant,
                    prefix=names,
                    stream=number != 2,
                )
            )
    return rows


async def sent(gateway_url: str, rows: Sequence[TraceRow]) -> None:
    """Sends the requests one after another, so that each finds what the earlier ones left in the cache."""
    for row in rows:
        roster = SenderTable([a_sender(tenant=name, key=f"hg-{name}") for name in TENANTS])
        plan = a_plan(gateway_url, from_trace([row], roster, seed=0), senders=roster.senders, exact_output=True)
        assert (await ran(plan)).line["outcome"] == "completed"


async def recorded(
    path: Path, gateways: Sequence[GatewayInLoop], *workloads: Sequence[TraceRow], keep_names: bool = False
) -> TraceTotals:
    """Records while each gateway gets its workload, and returns the trace's totals."""
    targets = [AdminTarget(each.admin_url, OPERATOR, None) for each in gateways]
    traffic = LiveTraffic(await start_recordings(targets, duration_s=600, recent=False), duration_s=600, wait_s=0)

    async def send() -> None:
        for gateway, workload in zip(gateways, workloads, strict=True):
            await sent(gateway.url, workload)
            await gateway.wait_until_idle()
        traffic.stop()

    with trace_file(path) as file:
        writer = TraceWriter(file, TraceHeader(), TenantPseudonyms(keep_names=keep_names))
        result, _ = await asyncio.gather(traffic.read(writer.add), send())
        assert result == LiveResult(0, 0, ())
        return writer.finish()


def rows_of(trace: Path) -> list[TraceRow]:
    return sorted(read_trace(trace), key=lambda row: row.at_ns)


def lines_of(trace: Path) -> list[dict[str, Any]]:
    """The lines of all requests, in order of arrival."""
    lines = [json.loads(line) for line in trace.read_text().splitlines()[1:-1]]
    return sorted(lines, key=lambda line: line["at_us"])


def simulated(trace: Path, folder: Path) -> SimulationReport:
    scenario = {**SCENARIO, "traffic": [{"trace": str(trace), "speed_up": SLOWER}]}
    settings = parse(yaml.safe_dump(scenario), folder / "scenario.yaml", {}, profiles=PROFILES, schedulers=SCHEDULERS)
    report = SimulationReport(build_scenario(settings, 0), scheduler="headgate")
    VirtualHost(report.scenario, report).run(None)
    return report


async def test_simulated_replay_reproduces_the_recorded_run(tmp_path: Path) -> None:
    trace, workload, computed = tmp_path / "trace.jsonl", a_workload(), tmp_path / "engine.jsonl"
    async with a_live_gateway(tmp_path, computed) as gateway:
        totals = await recorded(trace, [gateway], workload, keep_names=True)
    report = simulated(trace, tmp_path)

    kinds = Counter((row.service_class, row.tenant) for row in workload)
    assert [(row.service_class, row.tenant, row.stream) for row in rows_of(trace)] == [
        (row.service_class, row.tenant, row.stream) for row in workload
    ]
    assert {
        (service_class, tenant): dict(group.tally.outcomes)
        for service_class, tenants in report.tenants_by_class.items()
        for tenant, group in tenants.items()
    } == {kind: {Outcome.COMPLETED: count} for kind, count in kinds.items()}
    assert report.total.tally.output_tokens == totals.output_tokens == sum(row.output_tokens for row in workload)
    [engine] = report.run_summary.engines
    assert engine.prefix_queried_tokens == totals.prompt_tokens
    # Each conversation grows by a block per turn, and finds its earlier blocks in the cache.
    live_hits = [json.loads(line)["cached_tokens"] for line in computed.read_text().splitlines()]
    assert engine.prefix_hit_tokens == sum(live_hits) == len(TENANTS) * (512 + 1024)


async def test_load_test_replays_a_trace_with_the_same_structure(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl.gz", tmp_path / "second.jsonl"
    async with a_live_gateway(tmp_path) as gateway:
        await recorded(first, [gateway], a_workload(), keep_names=True)
    async with a_live_gateway(tmp_path) as gateway:
        await recorded(second, [gateway], rows_of(first), keep_names=True)

    def structure(row: TraceRow) -> TraceRow:
        # The engine counts two more prompt tokens than the load test: those of the role.
        return replace(row, at_ns=0, prompt_tokens=0)

    assert [structure(row) for row in rows_of(first)] == [structure(row) for row in rows_of(second)]
    assert max(len(row.prefix) for row in rows_of(first)) == 3


async def test_recordings_of_several_gateways_are_one_trace(tmp_path: Path) -> None:
    trace, workload = tmp_path / "trace.jsonl", a_workload()
    folders = [tmp_path / "a", tmp_path / "b"]
    for each in folders:
        each.mkdir()
    async with (
        engine_in_loop() as url,
        gateway_in_loop(a_gateway_config(url), folders[0]) as one,
        gateway_in_loop(a_gateway_config(url), folders[1]) as other,
    ):
        totals = await recorded(trace, [one, other], workload[:3], workload[3:])

    lines = lines_of(trace)
    assert totals.requests == len(lines) == len(workload)
    # The same tenants and prompts have the same names at both gateways.
    assert len({line["tenant"] for line in lines}) == len(TENANTS)
    # Ids are in the order in which the gateways were read. Here, they are numbered in order of arrival.
    order = list(dict.fromkeys(each for line in lines for each in line["prefix"]))
    prefixes = [[order.index(each) + 1 for each in line["prefix"]] for line in lines]
    assert prefixes[:3] == [[1], [2], [3]]
    assert prefixes[3:6] == [[1, 4], [2, 5], [3, 6]]
    assert prefixes[6:] == [[1, 4, 7], [2, 5, 8], [3, 6, 9]]
    assert lines[0]["tenant"].partition("/")[0] == lines[1]["tenant"].partition("/")[0], "both are acme's"
