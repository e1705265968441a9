"""Generate and replay event logs. The program prints the fingerprints of a log and of the scheduler's commands.

Usage: python -m tests.replay.log SEED EVENTS [WORLD]    Generate a log from a random seed.
       python -m tests.replay.log FILE                   Replay a log that another process has pickled.
"""

import pickle
import sys
from hashlib import sha256
from pathlib import Path
from random import Random

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.core.scheduler import Scheduler
from headgate.model.units import Instant
from testing.event_generator import CROWDED, FAULTY, LARGE, PRESSED, SMALL, EventGenerator

Log = list[tuple[Event, Instant]]
WORLDS = {"faulty": FAULTY, "large": LARGE, "pressed": PRESSED, "small": SMALL, "crowded": CROWDED}


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
