"""Try one setting on the live traffic of a running gateway: `headgate tune --live`.

The gateway alternates between the old and the new value, and keeps or reverts the new one by itself.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headgate.cli.input.admin_request import (
    AdminRequestFailed,
    call_admin_api,
    duration_s,
    print_failure,
    print_json,
    print_table,
)
from headgate.cli.input.argument_types import add_config, add_url
from headgate.wire.escape import escaped

STATUS: Final = "status"
ABORT: Final = "abort"
_COLUMNS = ("setting", "before", "value", "phase", "result", "block", "blocks", "new_value_in_force", "since", "reason")
_EFFECTS = ("property", "effect", "interval", "groups")
_POLL_S: Final = 2.0
_EXIT_NOT_KEPT: Final = 1
_EXIT_USAGE: Final = 2


def add_live_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `--live`. The verb's `--json` applies too."""
    live = parser.add_argument_group(
        "live",
        "Try one setting on the traffic of a running gateway. `headgate tune --live status` shows the trial, and "
        "`headgate tune --live abort` ends it.",
    )
    live.add_argument("--live", action="store_true", help="Try a setting on a running gateway.")
    given = live.add_mutually_exclusive_group()
    given.add_argument(
        "--set", dest="change", metavar="SETTING=VALUE", help="Setting and new value, such as headroom.kv_percent=90."
    )
    given.add_argument(
        "--from",
        dest="suggestions",
        type=Path,
        metavar="FILE",
        help="JSON output of `headgate tune`: try its first suggestion.",
    )
    live.add_argument(
        "--share", type=share, default=50, metavar="PERCENT", help="Share of time with the new value (default 50%%)."
    )
    live.add_argument(
        "--block", type=duration_s, default=30, metavar="DURATION", help="Time between changes (default 30s)."
    )
    live.add_argument(
        "--duration",
        type=duration_s,
        default=2_400,
        metavar="DURATION",
        help="Maximum length of the trial (default 40m).",
    )
    live.add_argument(
        "--keep-if",
        choices=("better", "harmless"),
        default="better",
        help="Evidence that is needed to keep the new value (default better).",
    )
    live.add_argument(
        "--tolerance",
        type=tolerance,
        default=1,
        metavar="PERCENT",
        help="By how many percentage points good requests may decrease (default 1%%).",
    )
    live.add_argument("--wait", action="store_true", help="Wait for the result.")
    add_config(parser)
    add_url(parser)


def share(text: str) -> int:
    return _percent(text, 5, 50)


def tolerance(text: str) -> int:
    return _percent(text, 1, 50)


def _percent(text: str, least: int, most: int) -> int:
    """Parses a whole number of percent, with or without the sign."""
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdigit()) or not least <= int(number) <= most:
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number from {least}% to {most}%')
    return int(number)


def run_live(args: argparse.Namespace, action: str | None) -> int:
    """Returns exit code 1 if the request failed, or the trial that is shown was not kept."""
    try:
        if action in (STATUS, ABORT):
            return _show(args, call_admin_api(args, f"trials/{action}", {}))
        if action is not None:
            raise ValueError(f'with --live, the argument can be status or abort, not "{action}"')
        started = _start(args)
        if not args.wait:
            return _show(args, started)
        return _show_result(args, started, _wait(args, started["override"]))
    except AdminRequestFailed as problem:
        return print_failure(problem)
    except KeyboardInterrupt:
        print("headgate tune: the trial goes on; `headgate tune --live abort` ends it", file=sys.stderr)
        return _EXIT_NOT_KEPT
    except ValueError as problem:
        print(f"headgate tune: {problem}", file=sys.stderr)
        return _EXIT_USAGE


def _start(args: argparse.Namespace) -> dict[str, Any]:
    setting, value = _change(args)
    body = {
        "setting": setting,
        "value": value,
        "share_percent": args.share,
        "block_s": args.block,
        "duration_s": args.duration,
        "keep_if": args.keep_if,
        "tolerance_percent": args.tolerance,
    }
    return call_admin_api(args, "trials/start", body)


def _change(args: argparse.Namespace) -> tuple[str, str]:
    """Returns the setting and its new value. Raises `ValueError`."""
    if args.suggestions is not None:
        return _first_suggestion(args.suggestions)
    setting, equals, value = (args.change or "").partition("=")
    if not (setting and equals and value):
        raise ValueError("--live needs --set SETTING=VALUE, --from FILE, status or abort")
    return setting.strip(), value.strip()


def _first_suggestion(file: Path) -> tuple[str, str]:
    import msgspec

    try:
        found: Any = msgspec.json.decode(file.read_bytes())
        first: Any = found["suggestions"][0]
        change: Any = first.get("change", first)
        setting, value = change["path"], change["after"]
    except OSError as problem:
        raise ValueError(f"cannot read {file}: {problem.strerror}") from None
    except IndexError:
        raise ValueError(f"{file} contains no suggestion") from None
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError):
        raise ValueError(f"{file} is not the output of `headgate tune SCENARIO.yaml --json`") from None
    if value is None:
        raise ValueError(f"the first suggestion in {file} removes {setting}; use --set with a value")
    return str(setting), str(value)


def _wait(args: argparse.Namespace, override: str) -> dict[str, Any]:
    """Waits until the trial has ended. Other trials may have started since."""
    print(f"waiting for the trial {override}; interrupting this command does not end it", file=sys.stderr)
    while True:
        answer = call_admin_api(args, f"trials/{STATUS}", {})
        if all(each["override"] != override for each in answer["data"]):
            return answer
        time.sleep(_POLL_S)


def _show_result(args: argparse.Namespace, started: Mapping[str, Any], answer: Mapping[str, Any]) -> int:
    """Returns exit code 0 only if the result of this trial is that the value was kept."""
    _show(args, answer)
    own = [each for each in answer["data"] if all(each[name] == started[name] for name in ("setting", "seed"))]
    if not own:
        print(
            "headgate tune: the trial has ended, and its result is no longer stored; see the gateway's log",
            file=sys.stderr,
        )
    return 0 if any(each["phase"] == "kept" for each in own) else _EXIT_NOT_KEPT


def _show(args: argparse.Namespace, answer: Mapping[str, Any]) -> int:
    trials: list[dict[str, Any]] = answer["data"] if "data" in answer else [dict(answer)]
    if args.json:
        print_json(answer)
    else:
        print_table(trials, _COLUMNS, empty="no setting trials; start one with `headgate tune --live --set …`")
        for each in trials:
            if rows := [_row(found) for found in each["effects"] if found["groups"]]:
                print()
                print(escaped(f"{each['setting']}: {each['value']} compared with {each['before']}"))
                print_table(rows, _EFFECTS, empty="")
            if each["phase"] == "kept":
                print()
                print(escaped(_kept_note(each)))
    shows_result = "data" in answer and bool(trials)
    return _EXIT_NOT_KEPT if shows_result and trials[-1]["phase"] == "reverted" else 0


def _kept_note(trial: Mapping[str, Any]) -> str:
    return (
        f"{trial['setting']} is {trial['value']} until {trial['expires']}. To keep it for longer, write the value into "
        f"the configuration file, reload it, and run `headgate operate end {trial['override']}`."
    )


def _row(found: Mapping[str, Any]) -> dict[str, str]:
    unit = "points" if found["subject"] == "promise" else "%"
    low, effect, high = (f"{100 * found[each]:+.1f}" for each in ("low", "estimate", "high"))
    return {
        "property": found["name"],
        "effect": f"{effect} {unit}",
        "interval": f"{low} to {high}",
        "groups": str(found["groups"]),
    }
