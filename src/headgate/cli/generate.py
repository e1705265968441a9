"""Generate files for other programs: Prometheus alert rules, Grafana dashboards, a JSON Schema of the configuration."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from headgate.cli.input.argument_types import add_actions, add_config

_RULES_HEAD = """\
# Prometheus rules, written by `headgate generate rules`. Regenerate them when a class's objectives change.
# Severity page notifies the person on call; ticket can wait for working hours. Each runbook_url explains its alert.
"""
_RULES_WIDTH = 120
_THIS_MACHINE = frozenset({"127.0.0.1", "::1", "localhost", "0.0.0.0", "::"})  # noqa: S104 (compared, not bound)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser)
    rules = add("rules", "Generate Prometheus alert and recording rules.")
    add_config(rules, "Configuration file with the objectives")
    rules.add_argument(
        "--runbook-url",
        metavar="URL",
        help="Location of the runbooks (default: the admin listener in the configuration file).",
    )
    dashboards = add("dashboards", "Generate Grafana dashboards.")
    dashboards.add_argument("--out", type=Path, required=True, metavar="DIR", help="Output directory (required).")
    schema = add("config-schema", "Generate a JSON Schema for the configuration file.")
    for each in (rules, schema):
        each.add_argument("--out", type=Path, metavar="FILE", help="Output file (default: stdout).")


def run(args: argparse.Namespace) -> int:
    match args.action:
        case "rules":
            return _rules(args)
        case "dashboards":
            return _dashboards(args.out)
        case _:
            return _config_schema(args.out)


def _rules(args: argparse.Namespace) -> int:
    import yaml

    from headgate.cli.output.objectives import load_objectives
    from headgate.slo.rules import rules

    promises = load_objectives(args.config)
    if promises is None:
        return 1
    made = rules(promises, runbooks=args.runbook_url or _runbooks_of(args.config))
    text = _RULES_HEAD + yaml.safe_dump(made, sort_keys=False, width=_RULES_WIDTH, allow_unicode=True)
    if not _write(args.out, text, then="add it to rule_files in the Prometheus configuration and reload Prometheus"):
        return 1
    if not any(list(each.ratio_objectives()) or each.cost_usd_per_1k_tokens is not None for each in promises):
        hint = "set classes.NAME.objectives for alerts on error budgets"
        print(f"headgate: {args.config} has no objectives; {hint}", file=sys.stderr)
    return 0


def _runbooks_of(config: Path) -> str:
    """Base URL of the runbooks on the admin listener, or only their path if the file does not set a fixed port."""
    import os

    from headgate.cli.output.status import base_url
    from headgate.config.load import admin_listen, admin_tls
    from headgate.slo.alert import RUNBOOKS

    host, port = admin_listen(config, os.environ)
    if port == 0:
        return f"/{RUNBOOKS}"
    url = base_url(host, port, https=admin_tls(config, os.environ) is not None)
    if host in _THIS_MACHINE:
        hint = "set --runbook-url to an address that the on-call team can reach"
        print(f"headgate: the runbook links point to {url}, which is this machine; {hint}", file=sys.stderr)
    return f"{url}/{RUNBOOKS}"


def _dashboards(directory: Path) -> int:
    files = list(dashboard_files())
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files:
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"headgate: cannot write {directory}: {error.strerror}", file=sys.stderr)
        return 1
    hint = "import them into Grafana, or provision the directory"
    print(f"wrote {len(files)} dashboards to {directory}; {hint}", file=sys.stderr)
    return 0


def dashboard_files() -> Iterator[tuple[str, str]]:
    """File name and text of each dashboard."""
    import json

    from headgate.slo.dashboards import DASHBOARDS
    from headgate.slo.panel import dashboard_json

    for each in DASHBOARDS:
        yield f"{each.uid}.json", json.dumps(dashboard_json(each), indent=2) + "\n"


def _config_schema(file: Path | None) -> int:
    import json

    from headgate.config.json_schema import config_schema
    from headgate.engines.dialects import DIALECTS
    from headgate.model.engine_profile import PROFILES

    text = json.dumps(config_schema(engines=DIALECTS, profiles=PROFILES), indent=2) + "\n"
    return 0 if _write(file, text, then="reference it in a comment `# yaml-language-server: $schema=FILE`") else 1


def _write(file: Path | None, text: str, *, then: str) -> bool:
    """Prints the text, or writes it to the file. On failure, prints the reason and returns False."""
    if file is None:
        print(text, end="")
        return True
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"headgate: cannot write {file}: {error.strerror}", file=sys.stderr)
        return False
    print(f"wrote {file}; {then}", file=sys.stderr)
    return True
