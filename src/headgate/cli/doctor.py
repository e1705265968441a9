"""Compare a configuration with its engines, its addresses and this machine.

`check` only reads the file. `doctor` also queries every address in the file, concurrently and with a timeout of two
seconds. If a gateway is running, its configuration is compared with the file. The output lists the findings, then the
protections.

With `--live`, the command prints a running gateway's verdicts instead.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import add_config, add_json, add_url
from headgate.wire.escape import escaped

if TYPE_CHECKING:
    from headgate.cli.checkup.finding import CheckFinding, Level
    from headgate.config.protections import Protection
    from headgate.config.settings import Settings
    from headgate.model.units import PoolName


@dataclass(frozen=True, slots=True)
class _Diagnosis:
    findings: "list[CheckFinding]"
    protections: "tuple[Protection, ...]" = ()
    """Overload protections; empty if the file could not be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--workers", type=int, metavar="N", help="Number of workers for `headgate serve` (default: none)."
    )
    parser.add_argument("--live", action="store_true", help="Show the current verdicts of a running gateway.")
    add_url(parser, ", with --live")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Returns exit code 1 if there is a problem."""
    if args.live:
        return _live(args)
    if args.url is not None:
        print("headgate: --url has no effect without --live; add --live or remove --url", file=sys.stderr)
        return 2
    from headgate.cli.checkup.finding import Level
    from headgate.config.protections import protection_lines, protection_rows

    found = _diagnose(args.config, args.workers)
    well = not any(finding.level is Level.PROBLEM for finding in found.findings)
    if args.json:
        import json

        rows = {
            "findings": [asdict(each) for each in found.findings],
            "protections": protection_rows(found.protections),
        }
        print(json.dumps({"ok": well, **rows}, indent=2))
    else:
        protection = protection_lines(found.protections) if found.protections else ()
        print("\n".join(map(escaped, [*_lines(found.findings), *protection])))
        print(_summary(found.findings), file=sys.stderr)
    return 0 if well else 1


def _live(args: argparse.Namespace) -> int:
    import asyncio

    from headgate.cli.checkup.live import VerdictPage, fetch_verdicts, lines
    from headgate.cli.input.admin_tls import admin_tls
    from headgate.cli.output.status import GatewayNotFound
    from headgate.cli.status import admin_url, start_hint
    from headgate.engines.page import open_session

    async def asked(url: str) -> tuple[VerdictPage, bytes]:
        async with open_session(tls=admin_tls(url, args.config)) as session:
            return await fetch_verdicts(session, url)

    url = admin_url(args.url, args.config)
    if url is None:
        return 1
    try:
        said, page = asyncio.run(asked(url))
    except GatewayNotFound as error:
        print(f"headgate: {error}; {start_hint(args.config, str(error))}", file=sys.stderr)
        return 1
    print(page.decode().rstrip() if args.json else "\n".join(map(escaped, lines(said, url))))
    return 0 if said.healthy else 1


def _diagnose(file: Path, workers: int | None) -> _Diagnosis:
    import asyncio

    from headgate.cli.checkup.finding import Level, ok, problem
    from headgate.config.load import load
    from headgate.config.problems import ConfigErrors
    from headgate.config.protections import protections
    from headgate.config.tls_files import tls_problems, tls_warnings
    from headgate.config.workers import workers_problem
    from headgate.engines.dialects import DIALECTS, engines_reporting_kv
    from headgate.model.engine_profile import PROFILES

    try:
        settings = load(file, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)
    except ConfigErrors as errors:
        return _Diagnosis([_parse_finding(Level.PROBLEM, str(each)) for each in errors.problems])
    findings = [ok(str(file), f"is valid; configuration {settings.hash}")]
    findings += [_parse_finding(Level.NOTE, warning) for warning in settings.warnings]
    findings += [_parse_finding(Level.PROBLEM, str(each)) for each in tls_problems(settings, str(file))]
    findings += [_parse_finding(Level.NOTE, str(each)) for each in tls_warnings(settings, str(file))]
    if workers is not None and (wrong := workers_problem(settings, file, workers)):
        message, _, then = wrong.partition("; ")
        findings.append(problem("--workers", message, next_step=then))
    real, kv_tokens = asyncio.run(_probe_environment(settings))
    return _Diagnosis(
        findings + real, protections(settings, kv_readable_engines=engines_reporting_kv(), reported_kv_tokens=kv_tokens)
    )


def _parse_finding(level: "Level", said: str) -> "CheckFinding":
    """A finding built from a configuration problem: `FILE:LINE: SETTING: problem; next step`."""
    from headgate.cli.checkup.finding import CheckFinding

    about, _, rest = said.partition(": ")
    message, _, then = rest.partition("; ")
    return CheckFinding(level, about, message, then)


async def _probe_environment(settings: "Settings") -> "tuple[list[CheckFinding], dict[PoolName, int]]":
    """The findings, and each pool's engine-reported KV capacity."""
    import asyncio

    from headgate.cli.checkup.clock import clock_findings
    from headgate.cli.checkup.database import check_database
    from headgate.cli.checkup.endpoints import check_endpoints, reported_kv_tokens
    from headgate.cli.checkup.listeners import check_listeners
    from headgate.cli.checkup.machine import machine_findings
    from headgate.cli.checkup.store import check_store
    from headgate.engines.page import open_session

    async with open_session() as session:
        looks, listeners, store, database = await asyncio.gather(
            check_endpoints(settings, session),
            check_listeners(settings, session),
            check_store(settings),
            check_database(settings),
        )
    findings = [finding for look in looks for finding in look.findings]
    heard = [*(look.clock for look in looks), listeners.clock]
    findings += [*listeners.findings, *store, *database, *clock_findings(heard), *machine_findings(settings)]
    return findings, reported_kv_tokens(looks)


def _lines(findings: "Sequence[CheckFinding]") -> Iterator[str]:
    for finding in findings:
        yield f"{finding.level:<8}{finding.about}: {finding.message}"
        if finding.next_step:
            yield f"{'':<8}  -> {finding.next_step}"


def _summary(findings: "Sequence[CheckFinding]") -> str:
    from headgate.cli.checkup.finding import Level

    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    notes = sum(finding.level is Level.NOTE for finding in findings)
    return f"{_count(problems, 'problem')}, {_count(notes, 'note')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
