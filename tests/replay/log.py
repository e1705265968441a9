"""Generate and replay event logs. The program prints the fingerprints of a log and of the scheduler's commands.

Usage: python -m tests.replay.log SEED EVENTS [WORLD]    Generate a log from a random seed.
       python -m tests.replay.log FILE                   Replay a log that another process has pickled.
"""

import pickle
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random

from headgate.core.commands import Command
from headgate.core.events import Event, SharesAssigned, TenantShare, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.core.share_update import SLICE_TENANTS_MAX
from headgate.model.limits import Limits, LimitShare
from headgate.model.persistent_map import PersistentMap
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, Duration, Instant, TenantId, after
from testing.event_generator import CROWDED, FAULTY, LARGE, PRESSED, SMALL, EventGenerator

Log = list[tuple[Event, Instant]]
WORLDS = {"faulty": FAULTY, "large": LARGE, "pressed": PRESSED, "small": SMALL, "crowded": CROWDED}

_BUSY = tuple(f"busy/{number:04}" for number in range(2 * SLICE_TENANTS_MAX))
_LIMITED = ("acme", "bolt", "cord", "busy", *_BUSY[:: SLICE_TENANTS_MAX // 4], *_BUSY[1::2])
_ACCOUNTS = [TenantId(name) for name in ("acme", "bolt", "cord", "busy")]
_SHARES = (100_000, 250_000, 750_000)
_DIVIDED = replace(
    SMALL,
    tenants=_LIMITED[:12],
    policies=tuple(
        replace(
            each, tenants=tuple(Tenant(TenantId(name), limits=Limits(120, 60_000, concurrency=12)) for name in _LIMITED)
        )
        for each in SMALL.policies
    ),
)
"""World with limits on all tenants."""


def write(seed: int, length: int, world: str = "faulty") -> tuple[Log, list[list[Command]]]:
    """Returns a generated log and the scheduler's commands for each event."""
    scheduler, day = Scheduler(), EventGenerator(WORLDS[world], Random(seed))
    log: Log = [(event, day.now) for event in day.opening()]
    answers = [scheduler.handle(event, now) for event, now in log]
    while len(log) < length:
        event, now = day.next(scheduler.next_wakeup())
        log.append((event, now))
        answers.append(scheduler.handle(event, now))
        day.apply(event, answers[-1])
    return log, answers


def write_with_shares(seed: int, length: int) -> tuple[Log, list[list[Command]]]:
    """Like `write`, with shares of limits that are assigned, renewed and expire.

    The account `busy` has more tenants than the scheduler recalculates at once.
    """
    scheduler, day, dice = Scheduler(), EventGenerator(_DIVIDED, Random(seed)), Random(seed + 1)
    shares: PersistentMap[TenantId, TenantShare] = PersistentMap()
    log: Log = [(event, day.now) for event in (*day.opening(), SharesAssigned(250_000))]
    answers = [scheduler.handle(event, now) for event, now in log]
    while len(log) < length:
        event, now = day.next(scheduler.next_wakeup())
        if not isinstance(event, TimerFired) and dice.random() < 0.05:
            accounts = dice.sample(_ACCOUNTS, 2)
            until = after(now, Duration(dice.choice((1, 3)) * SECOND))
            shares = shares.updated(
                {
                    name: TenantShare(name, LimitShare(dice.choice(_SHARES), dice.choice(_SHARES)), until)
                    for name in accounts
                }
            )
            event = SharesAssigned(250_000, shares)
        log.append((event, now))
        answers.append(scheduler.handle(event, now))
        day.apply(event, answers[-1])
    return log, answers


def replay(log: Log) -> list[list[Command]]:
    scheduler = Scheduler()
    return [scheduler.handle(event, now) for event, now in log]


def fingerprint(values: object) -> str:
    return sha256(repr(values).encode()).hexdigest()


def _asked_for(arguments: list[str]) -> tuple[Log, list[list[Command]]]:
    if len(arguments) > 1:
        return write(int(arguments[0]), int(arguments[1]), *arguments[2:])
    log: Log = pickle.loads(Path(arguments[0]).read_bytes())
    return log, replay(log)


if __name__ == "__main__":
    written, answered = _asked_for(sys.argv[1:])
    sys.stdout.write(f"{fingerprint(written)} {fingerprint(answered)}\n")
