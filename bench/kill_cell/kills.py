"""Which parts of a cell are killed, and how?

Each kind is one thing that happens to a cell which is at rest under load. It is over when every part runs again and
follows one scheduler, and a while has passed in which what the kill left behind can show.
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
"""After a kill, before the next."""
ALONE_S = 3.0
"""Before a killed process is started again, whose start takes a core from the others for a second."""
PAUSE_S = 10.0
FREEZE_S = 3.0
EMPTY_S_MIN, EMPTY_S_MAX = 0.1, 3.0
LEAVE_S_MAX = 90.0

Spans = Mapping[int, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Stage:
    cell: Cell
    store: Server | Sentinels
    chance: random.Random


def scheduler(stage: Stage) -> Kill:
    """The gateway that leads, or the dedicated process that does."""
    return _kill_part(stage, "scheduler", stage.cell.leader())


def dedicated(stage: Stage) -> Kill:
    return _kill_part(stage, "dedicated", stage.cell.leader())


def gateway(stage: Stage) -> Kill:
    """One that does not lead."""
    leading = stage.cell.leader()
    return _kill_part(stage, "gateway", stage.chance.choice([each for each in stage.cell.gateways if each != leading]))


def freeze(stage: Stage) -> Kill:
    """SIGSTOP of the gateway that leads, for longer than its lease: it wakes up as one that leads no more.

    Its own callers wait with it, and lose nothing.
    """
    cell, number = stage.cell, stage.cell.leader()
    process = cell.parts[number].process
    assert process is not None
    at_s = time.monotonic()
    process.freeze()
    time.sleep(FREEZE_S)
    process.thaw()
    away = {number: (at_s, time.monotonic() + 1.0)}
    return _over(stage, "freeze", at_s, away=away, note=cell.parts[number].name)


def _kill_part(stage: Stage, kind: str, victim: int) -> Kill:
    cell = stage.cell
    part = cell.parts[victim]
    at_s = cell.kill(part)
    time.sleep(ALONE_S)
    cell.start(part)
    again_s = time.monotonic()
    victims = {victim: (at_s, again_s)} if victim in cell.gateways else {}
    return _over(stage, kind, at_s, victims=victims, note=part.name)


def store(stage: Stage) -> Kill:
    """Kill -9, and back with nothing after a random while."""
    assert isinstance(stage.store, Server)
    away_s = stage.chance.uniform(EMPTY_S_MIN, EMPTY_S_MAX)
    at_s = time.monotonic()
    stage.store.kill()
    time.sleep(away_s)
    stage.store.restart(empty=True)
    return _over(stage, "store", at_s, note=f"away for {away_s:.1f} s")


def pause(stage: Stage) -> Kill:
    """SIGSTOP, and SIGCONT ten seconds later."""
    assert isinstance(stage.store, Server)
    at_s = time.monotonic()
    stage.store.pause()
    time.sleep(PAUSE_S)
    stage.store.resume()
    return _over(stage, "pause", at_s)


def failover(stage: Stage) -> Kill:
    """Kill -9 of the master that sentinels watch; it comes back as the replica of the new one."""
    assert isinstance(stage.store, Sentinels)
    at_s = time.monotonic()
    was = stage.store.failover()
    stage.store.wait_until_failed_over(was)
    took_s = time.monotonic() - at_s
    stage.store.revive(was)
    return _over(stage, "failover", at_s, note=f"a new master after {took_s:.1f} s")


def restart(stage: Stage) -> Kill:
    """Every gateway in turn, by SIGTERM: nobody is a victim, so nothing at all may be lost."""
    cell, at_s = stage.cell, time.monotonic()
    away: dict[int, tuple[float, float]] = {}
    for number in cell.gateways:
        from_s = time.monotonic()
        cell.terminate(cell.parts[number], LEAVE_S_MAX)
        cell.start(cell.parts[number])
        away[number] = (from_s, time.monotonic() + 2 * READY_EVERY_S)
        cell.wait_until_settled()
    return _over(stage, "restart", at_s, away=away)


def reload(stage: Stage) -> Kill:
    """Another configuration, by SIGHUP to all."""
    cell = stage.cell
    before = [str(seen.status["config_hash"]) for _, seen in sorted(cell.latest().items())]
    at_s = cell.reload()
    took_s = cell.wait_until_reloaded(before) - at_s
    return _over(stage, "reload", at_s, note=f"in force everywhere after {took_s:.2f} s")


def _over(
    stage: Stage, kind: str, at_s: float, *, victims: Spans | None = None, away: Spans | None = None, note: str = ""
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


KINDS: Mapping[str, Callable[[Stage], Kill]] = MappingProxyType(
    {each.__name__: each for each in (scheduler, gateway, freeze, store, pause, restart, reload, dedicated, failover)}
)
