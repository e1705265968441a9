"""Can this machine, and this shell, hold what the configuration allows?"""

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from headgate.cli.checkup.finding import Finding, note, ok, problem
from headgate.config.extras import missing_extras
from headgate.config.settings import Settings

# Listeners, logs, probes of engines, the event loop's own.
_FILES_BESIDE = 64
_BITS_GUESSABLE = 64
_BITS_STRONG = 128


def machine_findings(settings: Settings) -> Iterator[Finding]:
    # The gateway raises its own limit as far as it may, so only that far counts.
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield open_files(settings, files_max)
    yield from secret_strength(settings.key_secret)
    if settings.records is not None:
        yield records_folder(Path(settings.records.folder))
    if settings.state_folder is not None and settings.cell is None:
        yield state_folder(Path(settings.state_folder))
    yield from (problem(each.place, each.message, then=each.fix) for each in missing_extras(settings))


def records_folder(folder: Path) -> Finding:
    return _folder(folder, "records.folder", "no records are kept")


def state_folder(folder: Path) -> Finding:
    return _folder(folder, "state_folder", "learned speeds are lost with a restart")


def _folder(folder: Path, about: str, so: str) -> Finding:
    """Whether the user of this command may write there; nothing is written."""
    # What is not there yet is made, so the nearest that is there counts.
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    then = f"make {folder} a folder that the user of the gateway may write to, or name another in {about}"
    if not there.is_dir():
        return problem(about, f"{there} is no folder, so {so}", then=then)
    if not os.access(there, os.W_OK | os.X_OK):
        return problem(about, f"{there} may not be written to by this user, so {so}", then=then)
    return ok(about, f"{folder} can be written to" if there == folder.absolute() else f"{folder} can be made")


def open_files(settings: Settings, files_max: int) -> Finding:
    """Each connection of a caller is a file, and each request in flight another, to an engine."""
    about = "open files"
    places = sum(endpoint.in_flight_max for pool in settings.pools for endpoint in pool.endpoints)
    open_max = settings.limits.connections_open_max
    if files_max == resource.RLIM_INFINITY or files_max >= open_max + places + _FILES_BESIDE:
        return ok(about, f"the limit here allows {open_max:,} connections and {places:,} in flight")
    room = max(0, files_max - places - _FILES_BESIDE)
    message = (
        f"{files_max:,} may be open here: room for {room:,} connections, not for connections_open_max {open_max:,}"
    )
    then = f"raise the hard limit (`ulimit -Hn`) to {open_max + places + _FILES_BESIDE}, or lower connections_open_max"
    # With fewer connections than places the engines cannot even be filled.
    return problem(about, message, then=then) if room < places else note(about, message, then=then)


def secret_strength(secret: bytes | None) -> Iterator[Finding]:
    if secret is None:
        return
    about, then = "key_secret", "`headgate keys secret` makes a better one; keys made before must be made again"
    # At most so many: what people choose is worth less than its length and variety.
    bits = len(secret) * math.log2(max(2, len(set(secret))))
    if bits < _BITS_GUESSABLE:
        yield problem(about, f"can be guessed: it is worth {bits:.0f} bits at most", then=then)
    elif bits < _BITS_STRONG:
        yield note(about, f"is weaker than it could be: {bits:.0f} bits at most", then=then)
    else:
        yield ok(about, "is long and varied enough")
