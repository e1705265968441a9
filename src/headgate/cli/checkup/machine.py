"""Check this machine and this shell: open files, secrets, directories, optional libraries."""

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from headgate.cli.checkup.finding import CheckFinding, note, ok, problem
from headgate.config.extras import missing_extras
from headgate.config.settings import Settings

# Listeners, logs, engine probes, and the event loop's own files.
_FILES_RESERVED = 64
_BITS_GUESSABLE = 64
_BITS_STRONG = 128


def machine_findings(settings: Settings) -> Iterator[CheckFinding]:
    # The gateway raises its own soft limit to the hard limit.
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield open_files(settings, files_max)
    for secret in settings.key_secrets:
        yield from secret_strength(secret)
    if settings.records is not None:
        yield check_records_directory(Path(settings.records.directory))
    if settings.audit is not None:
        yield _check_directory(Path(settings.audit.directory), "audit.directory", "reads of tenants' data are rejected")
    if settings.state_directory is not None and settings.cell is None:
        yield check_state_directory(Path(settings.state_directory))
    yield from (problem(each.place, each.message, next_step=each.fix) for each in missing_extras(settings))


def check_records_directory(folder: Path) -> CheckFinding:
    return _check_directory(folder, "records.directory", "no records are stored")


def check_state_directory(folder: Path) -> CheckFinding:
    return _check_directory(folder, "state_directory", "learned speeds are lost on restart")


def _check_directory(folder: Path, about: str, consequence: str) -> CheckFinding:
    """Checks whether the current user may write to the directory, without writing anything."""
    # Missing directories will be created, so check the nearest existing one.
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    then = f"make {folder} a directory that the gateway's user can write to, or set {about} to another path"
    if not there.is_dir():
        return problem(about, f"{there} is not a directory, so {consequence}", next_step=then)
    if not os.access(there, os.W_OK | os.X_OK):
        return problem(about, f"this user cannot write to {there}, so {consequence}", next_step=then)
    return ok(about, f"{folder} is writable" if there == folder.absolute() else f"{folder} can be created")


def open_files(settings: Settings, files_max: int) -> CheckFinding:
    """Checks the open file limit. Each client connection and each request in flight to an engine needs a file
    descriptor.
    """
    about = "open files"
    limits = {each.url: each.in_flight_max for pool in settings.pools for each in pool.endpoints}
    places = sum(limits.values())
    open_max = settings.limits.connections_open_max
    if files_max == resource.RLIM_INFINITY or files_max >= open_max + places + _FILES_RESERVED:
        return ok(about, f"the limit allows {open_max:,} connections and {places:,} requests in flight")
    room = max(0, files_max - places - _FILES_RESERVED)
    message = f"the limit is {files_max:,}, enough for {room:,} connections; connections_open_max is {open_max:,}"
    then = (
        f"raise the hard limit (`ulimit -Hn`) to {open_max + places + _FILES_RESERVED}, or lower connections_open_max"
    )
    # If connections are limited to fewer than the sum of in_flight_max, the engines cannot be fully loaded.
    return problem(about, message, next_step=then) if room < places else note(about, message, next_step=then)


def secret_strength(secret: bytes) -> Iterator[CheckFinding]:
    about, then = "key_secret", "create one with `headgate keys secret`; existing keys must then be recreated"
    # This is an upper bound: secrets chosen by people have less entropy than their length and variety suggest.
    bits = len(secret) * math.log2(max(2, len(set(secret))))
    if bits < _BITS_GUESSABLE:
        yield problem(about, f"can be guessed: at most {bits:.0f} bits of entropy", next_step=then)
    elif bits < _BITS_STRONG:
        yield note(about, f"is weak: at most {bits:.0f} bits of entropy", next_step=then)
    else:
        yield ok(about, "is strong")
