"""A process fleet starts, replaces, drains and stops its engines."""

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headgate.model.endpoint import EndpointState
from headgate.model.units import MILLISECOND, SECOND, EndpointId
from headgate.ports.fleet import Phase
from tests.fleets.builders import Running, a_fleet, is_alive, look, terms, until_dead, warm_up

pytestmark = pytest.mark.process


async def test_endpoint_is_listed_immediately_and_started_after_its_warm_up(tmp_path: Path) -> None:
    asked: list[str] = []

    async def warm(url: str) -> str | None:
        asked.append(url)
        phases.append(running.fleet.phases())
        return "not yet" if len(asked) == 1 else None

    phases: list[dict[EndpointId, Phase]] = []
    async with a_fleet(terms(tmp_path, "--loads", "0.6"), warm=warm) as running:
        [coming] = running.fleet.endpoints()
        assert (coming.id, coming.started, coming.in_flight_max) == ("p/0", False, 4)
        await running.until_started(1)
        assert phases == [{"p/0": Phase.WARM_UP}] * 2
        assert running.fleet.phases() == {}

        [endpoint] = running.fleet.endpoints()
        assert endpoint.started
        assert asked == [endpoint.url] * 2, "the warm-up request is repeated until it succeeds"
        [(_, took_ns)] = running.notes.starts
    assert list(took_ns) == list(Phase)
    assert took_ns[Phase.WEIGHTS] > 100_000_000, "the engine reported loading for a while"
    assert took_ns[Phase.WARM_UP] > 100_000_000, "the warm-up took two requests"
    assert all(took >= 0 for took in took_ns.values())


async def test_each_process_has_its_own_port_log_and_environment(tmp_path: Path) -> None:
    made = terms(tmp_path)
    told = ("/bin/sh", "-c", 'echo "$WHO in $PWD"; exec "$@"', "sh", *made.options.command)
    folder = tmp_path / "here"
    folder.mkdir()
    environment = {"WHO": "{model} {slot}"}
    made = terms(tmp_path, command=told, environment=environment, working_directory=str(folder), device="gpu-{slot}")
    async with a_fleet(made, endpoints=2) as running:
        await running.until_ready(2)
        first, second = running.fleet.endpoints()

    assert first.url != second.url
    assert [first.device, second.device] == ["gpu-0", "gpu-1"]
    for slot in (0, 1):
        assert (tmp_path / f"logs/p-{slot}.log").read_text().startswith(f"m {slot} in {folder}\n")


async def test_scaling_stays_within_the_bounds(tmp_path: Path) -> None:
    async with a_fleet(terms(tmp_path), least=1, most=3) as running:
        await running.fleet.scale(9)
        await running.until_ready(3)
        assert running.fleet.desired == 3
        pids = running.fleet.pids()
        await running.fleet.scale(0)
        await running.until(lambda: len(running.fleet.pids()) == 1)

        assert running.scheduler.ready() == ["p/0"], "the newest endpoints are removed first"
        assert running.fleet.pids() == {"p/0": pids["p/0"]}
    assert not any(is_alive(pid) for pid in pids.values())


async def test_removed_endpoint_stops_after_its_last_attempt(tmp_path: Path) -> None:
    async with a_fleet(terms(tmp_path), endpoints=2) as running:
        await running.until_ready(2)
        busy = running.fleet.pids()["p/1"]
        running.scheduler.in_flight = {"p/0": 2, "p/1": 1}
        await running.fleet.scale(1)
        assert [each.id for each in running.fleet.endpoints()] == ["p/0"] or await _named(running, ["p/0"])
        await asyncio.sleep(0.05)
        assert is_alive(busy), "the endpoint has an attempt in flight"
        assert running.notes.drains == []
        running.scheduler.end_all()
        await until_dead(busy)

        [(drained, took_ns)] = running.notes.drains
    assert drained == "p/1", "the endpoint with the fewest attempts in flight is removed"
    assert took_ns > 40_000_000


async def test_drained_engine_stops_even_if_a_new_engine_takes_its_name(tmp_path: Path) -> None:
    """Between two polls of the drain, a new engine in the pool can take over the name."""
    async with a_fleet(terms(tmp_path), endpoints=2) as running:
        await running.until_ready(2)
        old = running.fleet.pids()["p/1"]
        running.scheduler.in_flight = {"p/0": 2, "p/1": 1}
        await running.fleet.scale(1)
        await running.until(lambda: "p/1" in running.scheduler.seen_leaving)
        running.scheduler.leaving.discard("p/1")

        await until_dead(old)
        running.scheduler.known.pop("p/1")


async def test_ejected_endpoint_is_removed_before_healthy_ones(tmp_path: Path) -> None:
    async with a_fleet(terms(tmp_path), endpoints=3) as running:
        await running.until_ready(3)
        running.scheduler.known["p/0"] = EndpointState.EJECTED
        running.scheduler.in_flight = {"p/0": 2}
        await running.fleet.scale(2)

        assert await _named(running, ["p/1", "p/2"])


async def test_lower_maximum_includes_draining_endpoints(tmp_path: Path) -> None:
    async with a_fleet(terms(tmp_path), endpoints=3, most=3) as running:
        await running.until_ready(3)
        running.scheduler.in_flight = {"p/0": 1, "p/1": 1, "p/2": 2}
        running.fleet.reconfigure(
            terms(tmp_path), look=look, warm_up=warm_up, endpoints=1, endpoints_min=1, endpoints_max=2
        )
        await _named(running, ["p/2"])
        os.kill(running.fleet.pids()["p/0"], signal.SIGKILL)
        await running.until(lambda: len(running.fleet.pids()) == 2)
        ended = running.fleet.pids()["p/1"]
        os.kill(ended, signal.SIGSTOP)
        running.scheduler.end_all()
        await running.until(lambda: [each for each, _ in running.notes.drains] == ["p/1"])
        await running.fleet.scale(2)
        await asyncio.sleep(0.05)

        assert list(running.fleet.pids()) == ["p/2"], "the stopping engine still uses its memory"
        os.kill(ended, signal.SIGCONT)
        await running.until_ready(2)


async def _named(running: Running, names: list[str]) -> bool:
    await running.until(lambda: [each.id for each in running.fleet.endpoints()] == names)
    return True


async def test_draining_endpoint_keeps_its_process_if_needed_again(tmp_path: Path) -> None:
    async with a_fleet(terms(tmp_path), endpoints=2, most=2) as running:
        await running.until_ready(2)
        pids = running.fleet.pids()
        running.scheduler.in_flight = {"p/0": 1, "p/1": 1}
        await running.fleet.scale(1)
        await _named(running, ["p/0"])
        await running.fleet.scale(2)
        await running.until_ready(2)
        running.scheduler.end_all()
        await asyncio.sleep(0.05)

        assert running.fleet.pids() == pids
    assert running.notes.drains == []


async def test_start_beyond_the_maximum_waits_for_a_drained_engine(tmp_path: Path) -> None:
    """A draining engine still uses its memory."""
    async with a_fleet(terms(tmp_path), endpoints=1, most=1) as running:
        await running.until_ready(1)
        first = running.fleet.pids()["p/0"]
        os.kill(first, signal.SIGSTOP)
        running.scheduler.in_flight = {"p/0": 1}
        await running.fleet.scale(0)
        await _named(running, [])
        running.scheduler.end_all()
        await running.until(lambda: running.notes.drains)
        await running.fleet.scale(1)
        assert running.fleet.pids() in ({"p/0": first}, {}), "no engine may start while the old one is stopping"
        os.kill(first, signal.SIGCONT)
        await running.until_ready(1)
        assert running.fleet.pids()["p/0"] != first
    assert not is_alive(first)


async def test_killed_process_is_replaced_on_another_port(tmp_path: Path) -> None:
    async with a_fleet(terms(tmp_path, restart_backoff_ns=300 * MILLISECOND)) as running:
        await running.until_started(1)
        [before] = running.fleet.endpoints()
        killed_at = asyncio.get_running_loop().time()
        os.kill(running.fleet.pids()["p/0"], signal.SIGKILL)
        await running.until_started(2)
        down_ns = round((asyncio.get_running_loop().time() - killed_at) * SECOND)
        [after] = running.fleet.endpoints()

    assert (after.id, after.url != before.url) == ("p/0", True)
    [(what, problem)] = running.notes.troubles
    assert (what, problem.split(";")[0]) == ("p/0", "exited with status -9")
    took_ns = sum(running.notes.starts[1][1].values())
    assert down_ns - took_ns >= 290 * MILLISECOND, "the backoff after a crash does not count as start time"


async def test_crash_loop_is_reported_once_and_restarts_use_exponential_backoff(tmp_path: Path) -> None:
    made = terms(tmp_path, "--says", "no GPU", "--crashes-after", "0")
    async with a_fleet(made) as running:
        await running.until(lambda: len(running.notes.troubles) == 2)
        named: list[str] = []
        began = asyncio.get_running_loop().time()
        for _ in range(60):
            named += [each.id for each in running.fleet.endpoints()]
            await asyncio.sleep(0.02)
        assert named == [], "an endpoint in a crash loop must not hold requests"
        watched_s = asyncio.get_running_loop().time() - began
        tries = (tmp_path / "logs/p-0.log").read_text().count("no GPU")
        assert len(running.notes.troubles) == 2, "the crash loop is reported once"

        first, loop = (problem for _, problem in running.notes.troubles)
    assert "restarting in 0.05 s" in first
    assert "crashed 3 times in a row" in loop
    assert "no GPU" in loop, "the report includes the end of the log"
    assert tries <= 3 + watched_s / 0.2 + 2, "the backoff must grow"


async def test_recovery_from_a_crash_loop_is_reported(tmp_path: Path) -> None:
    crash = tmp_path / "crash"
    crash.touch()
    made = terms(tmp_path)
    command = ("/bin/sh", "-c", f'test ! -e {crash} && exec "$@"', "sh", *made.options.command)
    made = terms(tmp_path, command=command)
    async with a_fleet(made) as running:
        await running.until(lambda: len(running.notes.troubles) == 2)
        crash.unlink()
        await running.until(lambda: running.notes.recoveries)
    assert running.notes.recoveries == ["p/0"]


async def test_missing_command_is_reported_with_the_shell_error(tmp_path: Path) -> None:
    async with a_fleet(terms(tmp_path, command=("no-such-engine", "{port}"))) as running:
        await running.until(lambda: running.notes.troubles)
    assert "exited with status 127" in running.notes.troubles[0][1]
    assert "no-such-engine" in running.notes.troubles[0][1]


async def test_missing_working_directory_is_reported(tmp_path: Path) -> None:
    async with a_fleet(terms(tmp_path, working_directory=str(tmp_path / "nowhere"))) as running:
        await running.until(lambda: running.notes.troubles)
    assert "failed to start" in running.notes.troubles[0][1]
    assert "nowhere" in running.notes.troubles[0][1]


async def test_engine_that_never_becomes_ready_is_treated_as_crashed(tmp_path: Path) -> None:
    async with a_fleet(terms(tmp_path, "--loads", "60", start_timeout_ns=800 * MILLISECOND)) as running:
        await running.until(lambda: running.notes.troubles)
        pids = running.fleet.pids()
    problem = running.notes.troubles[0][1]
    # On a busy machine, the engine may not even be listening by then.
    assert re.match(r"was not ready within 0\.8 s \((it is loading|nothing listens there|no response)\); ", problem)
    assert "raise fleet.start_timeout" in problem
    assert not any(is_alive(pid) for pid in pids.values())


async def test_starting_endpoint_is_removed_first_and_immediately(tmp_path: Path) -> None:
    async with a_fleet(terms(tmp_path)) as running:
        await running.until_ready(1)
        running.fleet.reconfigure(
            terms(tmp_path, "--loads", "60"),
            look=look,
            warm_up=warm_up,
            endpoints=None,
            endpoints_min=0,
            endpoints_max=3,
        )
        await running.fleet.scale(2)
        await running.until(lambda: len(running.fleet.pids()) == 2)
        await running.fleet.scale(1)
        await running.until(lambda: len(running.fleet.pids()) == 1)
        assert running.scheduler.ready() == ["p/0"]


async def test_stop_kills_processes_that_ignore_sigterm_and_their_children(tmp_path: Path) -> None:
    made = terms(tmp_path, "--spawns", str(tmp_path / "child"), "--ignores-sigterm", stop_timeout_ns=300 * MILLISECOND)
    async with a_fleet(made) as running:
        await running.until_ready(1)
        pids = [running.fleet.pids()["p/0"], int((tmp_path / "child").read_text())]
        assert all(is_alive(pid) for pid in pids)
    assert not any(is_alive(pid) for pid in pids)


async def test_stop_with_drain_waits_for_attempts_in_flight(tmp_path: Path) -> None:
    async with a_fleet(terms(tmp_path)) as running:
        await running.until_ready(1)
        running.scheduler.in_flight = {"p/0": 1}
        stopping = asyncio.create_task(running.fleet.stop(drain=True))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        running.scheduler.end_all()
        async with asyncio.timeout(60):
            await stopping
        assert running.fleet.pids() == {}


@pytest.mark.parametrize("change", ["scaled to zero", "stopped"])
async def test_starting_process_is_stopped_with_its_fleet(tmp_path: Path, change: str) -> None:
    async with a_fleet(terms(tmp_path, "--loads", "60")) as running:
        act: dict[str, Callable[[], Awaitable[None]]] = {
            "scaled to zero": lambda: running.fleet.scale(0),
            "stopped": running.fleet.stop,
        }
        await running.until(running.fleet.pids)
        pids = running.fleet.pids()
        await act[change]()
        await running.until(lambda: not running.fleet.pids())
    assert not any(is_alive(pid) for pid in pids.values())
