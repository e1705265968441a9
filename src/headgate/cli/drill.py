"""Cause one reversible incident in a running fleet, watch it, undo it and report whether the objectives held."""

import argparse
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final, Protocol

from headgate.cli.input.admin_request import duration_s
from headgate.cli.input.argument_types import add_actions, add_gateway

if TYPE_CHECKING:
    from headgate.cli.drills.drill_result import DrillResult
    from headgate.cli.drills.drill_run import DrillRun
    from headgate.cli.drills.fleet import DrillSample, LiveFleet
    from headgate.cli.input.admin_request import AdminTarget
    from headgate.config.settings import Settings

DRILL_KEY_VARIABLE: Final = "HEADGATE_DRILL_KEY"
EPILOG: Final = """\
The drill needs an operator key with the permissions read and operate in HEADGATE_ADMIN_KEY. Its act is an override that
the gateway ends by itself if this command cannot. The exit code is 0 if all objectives held, 1 if one was missed or the
drill was stopped, and 2 if it was refused.
"""
HELD, MISSED, REFUSED = 0, 1, 2
_LINE_EVERY_S: Final = 5.0
_CLEAR_LINE: Final = "\r\x1b[K"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Drill(Protocol):
    @property
    def force(self) -> bool: ...

    def describe(self, sample: "DrillSample") -> str:
        """Describes exactly what would be done. Raises `DrillRefused`."""
        ...

    async def perform(self, run: "DrillRun") -> "DrillResult":
        """Performs the drill and undoes its act. Raises `DrillRefused`."""
        ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = add_actions(parser)
    loss = add("endpoint-loss", "Take an endpoint out of service and give it back.")
    loss.add_argument("--endpoint", metavar="ENDPOINT", help="Endpoint to take away (default: the busiest).")
    loss.add_argument("--pool", metavar="POOL", help="Pool of the endpoint (default: any).")
    loss.add_argument(
        "--interrupt",
        action="store_true",
        help="Abort its open requests, as if it had failed (default: they continue).",
    )
    _add_duration(loss, "for", 60, "Time without the endpoint")
    start = add("cold-start", "Start one more endpoint, measure how long it takes, and remove it.")
    start.add_argument("--pool", metavar="POOL", help="Autoscaled pool (default: the only one).")
    start.add_argument(
        "--wait",
        type=duration_s,
        metavar="DURATION",
        help="Maximum wait for the endpoint (default: three times scaling.cold_start, at least 60s).",
    )
    overload = add("overload", "Add traffic of a tenant of its own.")
    _add_overload(overload)
    failover = add("cell-failover", "Make the scheduler of a cell hand over to another gateway.")
    failover.add_argument(
        "--gap-max", type=_seconds, default=1.0, metavar="SECONDS", help="Allowed time without decisions (default 1)."
    )
    failover.add_argument(
        "--pause",
        type=_pause_s,
        default=5,
        metavar="DURATION",
        help="Time before the old scheduler is a candidate again, at most 30s (default 5s).",
    )
    for each, before_s, after_s in ((loss, 30, 60), (start, 10, 60), (overload, 30, 30), (failover, 10, 30)):
        _add_duration(each, "before", before_s, "Time to watch before the act")
        _add_duration(each, "after", after_s, "Time to watch after the act is undone")
        each.add_argument("--yes", action="store_true", help="Perform the drill (default: only say what it would do).")
        each.add_argument(
            "--force",
            action="store_true",
            help="Perform it even if the fleet is unhealthy or another drill is running.",
        )
        each.epilog = EPILOG
        add_gateway(each)


def _add_overload(parser: argparse.ArgumentParser) -> None:
    _add_duration(parser, "for", 60, "Duration of the traffic")
    parser.add_argument(
        "--load",
        type=_times,
        default=1.5,
        metavar="X",
        help="Total load with the added traffic (default 1.5x).",
    )
    parser.add_argument(
        "--of",
        choices=("present", "capacity"),
        default="present",
        help="What --load is relative to: the present load or the measured capacity (default present).",
    )
    parser.add_argument(
        "--tenant", default="drill", metavar="TENANT", help="Tenant of the key, used only for drills (default drill)."
    )
    parser.add_argument(
        "--api-key",
        default=f"env:{DRILL_KEY_VARIABLE}",
        metavar="env:NAME",
        help=f"Environment variable with the tenant's API key (default env:{DRILL_KEY_VARIABLE}).",
    )
    parser.add_argument(
        "--class",
        dest="service_class",
        metavar="CLASS",
        help="Class of the added requests (default: that with the lowest priority in --config).",
    )
    parser.add_argument("--model", metavar="NAME", help="Requested model (default: the first in --config).")
    parser.add_argument(
        "--target",
        metavar="URL",
        help="The gateway's client listener; required with --url (default: listen in --config).",
    )
    parser.add_argument(
        "--abort-below",
        type=_percent,
        default=0.8,
        metavar="PERCENT",
        help="Stop when an objective of another class falls below this over 10 s (default 80).",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="Random seed (default 0).")


def _add_duration(parser: argparse.ArgumentParser, name: str, default_s: int, what: str) -> None:
    parser.add_argument(
        f"--{name}",
        dest=f"{name}_s",
        type=duration_s,
        default=default_s,
        metavar="DURATION",
        help=f"{what} (default {default_s}s).",
    )


def run(args: argparse.Namespace) -> int:
    import asyncio

    from headgate.cli.drills.drill_run import DrillRefused
    from headgate.cli.input.admin_request import AdminRequestFailed, admin_target
    from headgate.cli.output.status import GatewayNotFound
    from headgate.loadtest.problem import WorkloadError

    try:
        target = admin_target(args.url, args.config, permissions="read,operate")
        drill = _drill(args)
        result = asyncio.run(_run(args, target, drill))
    except (DrillRefused, AdminRequestFailed, GatewayNotFound, WorkloadError) as problem:
        return _refuse(args, str(problem))
    except KeyboardInterrupt:
        print("headgate drill: stopped at once; an override that is still in force expires by itself", file=sys.stderr)
        return MISSED
    if result is None:
        return REFUSED
    _print_result(args, result)
    return HELD if result.held else MISSED


def _refuse(args: argparse.Namespace, why: str) -> int:
    if args.json:
        _print_json({"drill": args.action, "verdict": "refused", "reason": why})
    if why:
        print(f"headgate drill: refused: {why}", file=sys.stderr)
    return REFUSED


def _print_result(args: argparse.Namespace, result: "DrillResult") -> None:
    from headgate.wire.escape import escaped

    if args.json:
        _print_json(result.json())
    else:
        print("\n".join(map(escaped, result.lines())))


def _print_json(answer: dict[str, object]) -> None:
    import msgspec

    print(msgspec.json.encode(answer).decode(), flush=True)


async def _run(args: argparse.Namespace, target: "AdminTarget", drill: Drill) -> "DrillResult | None":
    """Performs the drill. Without `--yes`, says what it would do and returns None."""
    from headgate.cli.drills.drill_run import DrillRun
    from headgate.cli.drills.fleet import LiveFleet
    from headgate.cli.drills.preflight import check_fleet
    from headgate.engines.page import open_session
    from headgate.wire.escape import escaped

    progress = _Progress(terminal=sys.stderr.isatty())
    async with open_session(tls=target.tls) as session:
        fleet = LiveFleet(session, target)
        await fleet.find_members()
        run = DrillRun(fleet, progress=progress.show)
        await check_fleet(run, force=drill.force)
        does = drill.describe(run.last)
        if not args.yes:
            _say_plan(args, escaped(does), fleet)
            return None
        _stop_on_signals(run)
        try:
            return await drill.perform(run)
        finally:
            progress.clear()


def _say_plan(args: argparse.Namespace, does: str, fleet: "LiveFleet") -> None:
    gateways = ", ".join(fleet.urls)
    if args.json:
        _print_json({"drill": args.action, "verdict": "refused", "reason": "--yes is missing", "would": does})
    else:
        print(f"This drill {does}.")
        print(f"Gateways: {gateways}")
    print("headgate drill: nothing was done; add --yes to perform it", file=sys.stderr)


def _stop_on_signals(run: "DrillRun") -> None:
    """The first signal ends the drill and undoes it. The second one ends the command."""
    import asyncio

    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        run.end_early(f"interrupted by {number.name}")
        for each in _SIGNALS:
            loop.remove_signal_handler(each)

    for each in _SIGNALS:
        loop.add_signal_handler(each, stop, each)


def _drill(args: argparse.Namespace) -> Drill:
    """Returns the drill that the arguments describe. Raises `DrillRefused` or `WorkloadError`."""
    from headgate.cli.drills.cell_failover import CellFailoverDrill
    from headgate.cli.drills.cold_start import ColdStartDrill
    from headgate.cli.drills.endpoint_loss import EndpointLossDrill

    before_s, after_s, force = args.before_s, args.after_s, args.force
    match args.action:
        case "endpoint-loss":
            return EndpointLossDrill(
                args.endpoint, args.pool, args.interrupt, before_s, args.for_s, after_s, force=force
            )
        case "cold-start":
            return ColdStartDrill(args.pool, before_s, args.wait, after_s, force=force)
        case "cell-failover":
            return CellFailoverDrill(before_s, after_s, args.gap_max, args.pause, force=force)
        case _:
            return _overload(args)


def _overload(args: argparse.Namespace) -> Drill:
    from headgate.cli.drills.overload import LoadTestTraffic, OverloadDrill
    from headgate.cli.output.status import base_url
    from headgate.cli.status import url_in_environment
    from headgate.loadtest.senders import read_key

    url, model, service_class = args.target, args.model, args.service_class
    if not args.target and (args.url or url_in_environment(args.config)):
        raise _refused(
            "--target is missing: the admin listener comes from --url or HEADGATE_ADMIN_URL, and --config may describe "
            "another gateway; specify the client listener of the same gateway"
        )
    if None in (url, model, service_class):
        settings = _settings(args)
        url = url or base_url(*settings.listen, https=settings.listen_tls is not None)
        model = model or next(each.name for each in settings.policy.models)
        service_class = service_class or max(settings.policy.classes, key=lambda each: each.band).name
    if not args.api_key.startswith("env:"):
        raise _refused("--api-key must be env:NAME, because other users could see a key on the command line")
    traffic = LoadTestTraffic(
        url,
        model,
        service_class=service_class,
        tenant=args.tenant,
        key=read_key(args.api_key, os.environ),
        seed=args.seed,
    )
    return OverloadDrill(
        args.tenant,
        service_class,
        args.load,
        args.of == "capacity",
        args.abort_below,
        args.before_s,
        args.for_s,
        args.after_s,
        force=args.force,
        send=traffic,
    )


def _settings(args: argparse.Namespace) -> "Settings":
    """Reads the configuration file. Raises `DrillRefused`."""
    from headgate.config.load import load
    from headgate.config.problems import ConfigErrors
    from headgate.engines.dialects import DIALECTS
    from headgate.model.engine_profile import PROFILES

    try:
        return load(args.config, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)
    except ConfigErrors as errors:
        raise _refused(f"{errors}\nspecify --target, --model and --class, or correct --config") from None


def _refused(why: str) -> Exception:
    from headgate.cli.drills.drill_run import DrillRefused

    return DrillRefused(why)


class _Progress:
    """One line on a terminal, or a line every few seconds elsewhere."""

    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal
        self._shown_at_s = float("-inf")
        self._began_at_s = time.monotonic()

    def show(self, text: str) -> None:
        now_s = time.monotonic()
        line = f"{now_s - self._began_at_s:4.0f} s  {text}"
        if self._terminal:
            sys.stderr.write(_CLEAR_LINE + line[:120])
            sys.stderr.flush()
        elif now_s - self._shown_at_s >= _LINE_EVERY_S:
            self._shown_at_s = now_s
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._terminal:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()


def _number(text: str, suffix: str, expected: str, *, least: float, most: float) -> float:
    """Parses a number above `least` and up to `most`, with or without its suffix."""
    try:
        value = float(text.removesuffix(suffix))
    except ValueError:
        value = float("nan")
    if not least < value <= most:
        raise argparse.ArgumentTypeError(f'"{text}" is not {expected}')
    return value


def _seconds(text: str) -> float:
    return _number(text, "s", "a number of seconds up to 60", least=0, most=60)


def _pause_s(text: str) -> int:
    if (seconds := duration_s(text)) > 30:
        raise argparse.ArgumentTypeError(f"must be at most 30s, not {text}")
    return seconds


def _times(text: str) -> float:
    return _number(text, "x", "a factor above 1 and up to 10, such as 1.5x", least=1, most=10)


def _percent(text: str) -> float:
    return _number(text, "%", "a percentage above 0 and up to 100", least=0, most=100) / 100
