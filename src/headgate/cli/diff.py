"""Show what a new configuration file would change.

Both files are read as `headgate serve` reads them, so only differences in the resulting settings are shown, and not
those in comments, order or explicit defaults. The command works offline. Like `diff`, it exits with 0 if there is no
difference, 1 if there is one, and 2 if a file is invalid.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.cli.input.argument_types import add_config, add_json
from headgate.wire.escape import escaped

if TYPE_CHECKING:
    from headgate.config.difference import SettingDifference
    from headgate.config.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("new", type=Path, metavar="NEW.yaml", help="New configuration file.")
    add_config(parser, "Configuration file in use")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from headgate.compose.restart import restart_needed
    from headgate.config.difference import setting_changes
    from headgate.config.effective import effective_settings
    from headgate.config.load import load
    from headgate.config.problems import ConfigErrors
    from headgate.engines.dialects import DIALECTS
    from headgate.model.engine_profile import PROFILES

    try:
        before, after = (
            load(each, os.environ, engines=DIALECTS.keys(), profiles=PROFILES) for each in (args.config, args.new)
        )
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 2
    changes = setting_changes(effective_settings(before), effective_settings(after))
    restart = restart_needed(before, after)
    if args.json:
        _print_json(before, after, changes, restart)
    else:
        print("\n".join(map(escaped, _lines(before, after, changes, restart))))
    return 1 if changes else 0


def _lines(
    before: "Settings", after: "Settings", changes: "Sequence[SettingDifference]", restart: Sequence[str]
) -> Iterator[str]:
    if not changes:
        yield f"no difference: both files have the configuration {before.hash}"
        return
    yield f"configuration {before.hash} -> {after.hash}"
    yield from (f"  {each.setting}: {_change(each)}" for each in changes)
    yield from (f"new warning: {each}" for each in _new_warnings(before, after))
    if restart:
        yield f"restart needed for: {', '.join(restart)}; a reload applies the other changes"
    else:
        yield "a reload applies these changes"


def _change(change: "SettingDifference") -> str:
    before, after = change.before, change.after
    if "" in (before, after):
        return "added" if before is None else "removed"
    before, after = before or "not set", after or "not set"
    # Secrets, for example, are compared but not shown.
    return f"{after} (changed)" if before == after else f"{before} -> {after}"


def _new_warnings(before: "Settings", after: "Settings") -> Iterator[str]:
    """Warnings about the new file only. The location, before the first space, differs between the files."""
    known = {each.partition(" ")[2] for each in before.warnings}
    yield from (each for each in after.warnings if each.partition(" ")[2] not in known)


def _print_json(
    before: "Settings", after: "Settings", changes: "Sequence[SettingDifference]", restart: Sequence[str]
) -> None:
    import json

    print(
        json.dumps(
            {
                "before": before.hash,
                "after": after.hash,
                "changes": [each._asdict() for each in changes],
                "restart_needed": restart,
                "warnings": list(_new_warnings(before, after)),
            },
            indent=2,
        )
    )
