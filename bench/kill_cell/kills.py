"""Kinds of kill.

Each kind is one fault in a settled cell under load. It is over once every part is running again and following one
scheduler, plus some time for late effects to show.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bench.kill_cell.figures import Kill
from bench.kill_cell.load import READY_EVERY_S
from bench.kill_cell.processes import Cell
from testing.stores import Sentinels, Server

CALM_S = 2.0
"""Pause between two kills."""
ALONE_S = 3.0
"""Delay before a killed process is restarted. Starting it takes a core away from the others for a second."""
PAUSE_S = 10.0
FREEZE_S = 3.0
EMPTY_S_MIN, EMPTY_S_MAX = 0.1, 3.0
LEAVE_S_MAX = 90.0

Spans = Mapping[int, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class KillTarget:
    cell: Cell
    store: Server | Sentinels
    chance: random.Random


def scheduler(stage: KillTarget) -> Kill:
    """Kill the process that leads: a gateway, or a dedicated scheduler."""
    return _kill_part(stage, "scheduler", stage.cell.leader())


def dedicated(stage: KillTarget) -> Kill:
    return _kill_part(stage, "dedicated", stage.cell.leader())


def gateway(stage: KillTarget) -> Kill:
    """Kill a gateway that does not lead."""
    leading = stage.cell.leader()
    return _kill_part(stage, "gateway", stage.chance.choice([each for each in stage.cell.gateways if each != leading]))


def freeze(stage: KillTarget) -> Kill:
    """SIGSTOP the leading gateway for longer than its lease, so that it no longer leads when it continues.

    Its own clients wait in the meantime, and none of their requests may be lost.
    """
    cell, number = stage.cell, stage.cell.leader()
    process = cell.parts[number].process
    assert process is not None
    at_s = time.monotonic()
    process.freeze()
    time.sleep(FREEZE_S)
    process.thaw()
    away = {number: (at_s, time.monotonic() + 1.0)}
    return _settled_kill(stage, "freeze", at_s, away=away, note=cell.parts[number].name)


def _kill_part(stage: KillTarget, kind: str, victim: int) -> Kill:
    cell = stage.cell
    part = cell.parts[victim]
    at_s = cell.kill(part)
    time.sleep(ALONE_S)
    cell.start(part)
    again_s = time.monotonic()
    victims = {victim: (at_s, again_s)} if victim in cell.gateways else {}
    return _settled_kill(stage, kind, at_s, victims=victims, note=part.name)


def store(stage: KillTarget) -> Kill:
    """Kill the store with SIGKILL and restart it empty after a random delay."""
    assert isinstance(stage.store, Server)
    away_s = stage.chance.uniform(EMPTY_S_MIN, EMPTY_S_MAX)
    at_s = time.monotonic()
    stage.store.kill()
    time.sleep(away_s)
    stage.store.restart(empty=True)
    return _settled_kill(stage, "store", at_s, note=f"unreachable for {away_s:.1f} s")


def pause(stage: KillTarget) -> Kill:
    """SIGSTOP the store, and SIGCONT it ten seconds later."""
    assert isinstance(stage.store, Server)
    at_s = time.monotonic()
    stage.store.pause()
    time.sleep(PAUSE_S)
    stage.store.resume()
    return _settled_kill(stage, "pause", at_s)


def failover(stage: KillTarget) -> Kill:
    """Kill the master, which sentinels watch, with SIGKILL. It returns as a replica of the new master."""
    assert isinstance(stage.store, Sentinels)
    at_s = time.monotonic()
    was = stage.store.failover()
    stage.store.wait_until_failed_over(was)
    took_s = time.monotonic() - at_s
    stage.store.restart_as_replica(was)
    return _settled_kill(stage, "failover", at_s, note=f"new master after {took_s:.1f} s")


def restart(stage: KillTarget) -> Kill:
    """Restart every gateway in turn with SIGTERM. No process is killed, so no call may be lost."""
    cell, at_s = stage.cell, time.monotonic()
    away: dict[int, tuple[float, float]] = {}
    for number in cell.gateways:
        from_s = time.monotonic()
        cell.terminate(cell.parts[number], LEAVE_S_MAX)
        cell.start(cell.parts[number])
        away[number] = (from_s, time.monotonic() + 2 * READY_EVERY_S)
        cell.wait_until_settled()
    return _settled_kill(stage, "restart", at_s, away=away)


def reload(stage: KillTarget) -> Kill:
    """Send SIGHUP to all parts with a new configuration."""
    cell = stage.cell
    before = [str(seen.status["config_hash"]) for _, seen in sorted(cell.latest().items())]
    at_s = cell.reload()
    took_s = cell.wait_until_reloaded(before) - at_s
    return _settled_kill(stage, "reload", at_s, note=f"applied everywhere after {took_s:.2f} s")


def _settled_kill(
    stage: KillTarget,
    kind: str,
    at_s: float,
    *,
    victims: Spans | None = None,
    away: Spans | None = None,
    note: str = "",
) -> Kill:
    settled_s = stage.cell.wait_until_settled()
    time.sleep(CALM_S + stage.chance.uniform(0, 0.5))
    return Kill(
        kind=kind,
        at_s=at_s,
        settled_s=settled_s,
        until_s=time.monotonic(),
        victims=victims or {},
        away=away or {},
        islands=stage.cell.islands(at_s),
        note=note,
    )


KINDS: Mapping[str, Callable[[KillTarget], Kill]] = MappingProxyType(
    {each.__name__: each for each in (scheduler, gateway, freeze, store, pause, restart, reload, dedicated, failover)}
)
