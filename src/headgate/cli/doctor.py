"""Does a configuration fit reality: the engines, the addresses, the machine?

`check` reads the file alone; this also asks whatever it names. No gateway needs to run; where one does, it is compared
with the file. Everything is asked at once and nothing is waited for longer than two seconds. After the findings comes
the list of protections, each with its state.

With `--live` a running gateway is asked instead what is wrong at this moment, and with whom.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.wire.escape import escaped

if TYPE_CHECKING:
    from headgate.cli.checkup.finding import Finding, Level
    from headgate.config.protections import Protection
    from headgate.config.settings import Settings
    from headgate.model.units import PoolName


@dataclass(frozen=True, slots=True)
class _Found:
    findings: "list[Finding]"
    protections: "tuple[Protection, ...]" = ()
    """Empty if the file could not be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="headgate.yaml", type=Path, help="configuration (headgate.yaml)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--workers", type=int, metavar="N", help="check for `headgate serve --workers N`")
    parser.add_argument("--live", action="store_true", help="ask a running gateway what is wrong at this moment")
    parser.add_argument(
        "--gateway", metavar="URL", help="with --live: its admin listener, such as http://127.0.0.1:9090"
    )


def run(args: argparse.Namespace) -> int:
    """The exit code is 1 if there is any problem."""
    if args.live:
        return _live(args)
    if args.gateway is not None:
        print("headgate: --gateway names whom --live asks; add --live", file=sys.stderr)
        return 2
    from headgate.cli.checkup.finding import Level
    from headgate.config.protections import as_rows, protection_lines

    found = _found(args.file, args.workers)
    well = not any(finding.level is Level.PROBLEM for finding in found.findings)
    if args.json:
        import json

        rows = {"findings": [asdict(each) for each in found.findings], "protections": as_rows(found.protections)}
        print(json.dumps({"ok": well, **rows}, indent=2))
    else:
        protection = protection_lines(found.protections) if found.protections else ()
        print("\n".join(map(escaped, [*_lines(found.findings), *protection])))
        print(_summary(found.findings), file=sys.stderr)
    return 0 if well else 1


def _live(args: argparse.Namespace) -> int:
    import asyncio

    from headgate.cli.checkup.live import Said, ask, lines
    from headgate.cli.output.status import NotAGateway
    from headgate.cli.status import admin_url
    from headgate.engines.page import open_session

    async def asked(url: str) -> tuple[Said, bytes]:
        async with open_session() as session:
            return await ask(session, url)

    url = admin_url(args.gateway, args.file)
    if url is None:
        return 1
    try:
        said, page = asyncio.run(asked(url))
    except NotAGateway as error:
        hint = f"start one with `headgate serve {args.file}`, or name its admin listener with --gateway"
        print(f"headgate: {error}; {hint}", file=sys.stderr)
        return 1
    print(page.decode().rstrip() if args.json else "\n".join(map(escaped, lines(said))))
    return 0 if said.well else 1


def _found(file: Path, workers: int | None) -> _Found:
    import asyncio

    from headgate.cli.checkup.finding import Level, ok, problem
    from headgate.config.load import load
    from headgate.config.problems import ConfigErrors
    from headgate.config.protections import protections
    from headgate.config.workers import unfit
    from headgate.engines.dialects import DIALECTS, readable_kv
    from headgate.model.engine_profile import PROFILES

    try:
        settings = load(file, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)
    except ConfigErrors as errors:
        return _Found([_read(Level.PROBLEM, str(each)) for each in errors.problems])
    findings = [ok(str(file), f"is right; configuration {settings.hash}")]
    findings += [_read(Level.NOTE, warning) for warning in settings.warnings]
    if workers is not None and (wrong := unfit(settings, file, workers)):
        message, _, then = wrong.partition("; ")
        findings.append(problem("--workers", message, then=then))
    real, kv_tokens = asyncio.run(_reality(settings))
    return _Found(findings + real, protections(settings, readable=readable_kv(), reported=kv_tokens))


def _read(level: "Level", said: str) -> "Finding":
    """What reading the file said: `FILE:LINE: PLACE: what is wrong; what to do`."""
    from headgate.cli.checkup.finding import Finding

    about, _, rest = said.partition(": ")
    message, _, then = rest.partition("; ")
    return Finding(level, about, message, then)


async def _reality(settings: "Settings") -> "tuple[list[Finding], dict[PoolName, int]]":
    """The findings, and the KV capacity that the engines of each pool report."""
    import asyncio

    from headgate.cli.checkup.clock import clock_findings
    from headgate.cli.checkup.database import look_at_database
    from headgate.cli.checkup.endpoints import look_at_all, reported_kv_tokens
    from headgate.cli.checkup.listeners import look_at_listeners
    from headgate.cli.checkup.machine import machine_findings
    from headgate.cli.checkup.store import look_at_store
    from headgate.engines.page import open_session

    async with open_session() as session:
        looks, listeners, store, database = await asyncio.gather(
            look_at_all(settings, session),
            look_at_listeners(settings, session),
            look_at_store(settings),
            look_at_database(settings),
        )
    findings = [finding for look in looks for finding in look.findings]
    heard = [*(look.heard for look in looks), listeners.heard]
    findings += [*listeners.findings, *store, *database, *clock_findings(heard), *machine_findings(settings)]
    return findings, reported_kv_tokens(looks)


def _lines(findings: "Sequence[Finding]") -> Iterator[str]:
    for finding in findings:
        yield f"{finding.level:<8}{finding.about}: {finding.message}"
        if finding.next:
            yield f"{'':<8}  -> {finding.next}"


def _summary(findings: "Sequence[Finding]") -> str:
    from headgate.cli.checkup.finding import Level

    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    notes = sum(finding.level is Level.NOTE for finding in findings)
    return f"{_count(problems, 'problem')}, {_count(notes, 'note')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
