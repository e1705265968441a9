"""Which rules does Prometheus need, so that somebody is woken when a promise is in danger?"""

import argparse
import sys
from pathlib import Path

_HEAD = """\
# Rules for Prometheus, made by `headgate rules`. Make them anew when the objectives of a class change.
# severity: page wakes somebody, ticket is read by day. Every alert has its page under runbook_url.
"""
_WIDTH = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="headgate.yaml", type=Path, help="configuration (headgate.yaml)")
    parser.add_argument(
        "--runbooks",
        metavar="URL",
        default="docs/operations/runbooks",
        help="where the runbooks are published (docs/operations/runbooks)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write them there instead of printing them")


def run(args: argparse.Namespace) -> int:
    import yaml

    from headgate.cli.output.promises import promises_in
    from headgate.slo.rules import rules

    promises = promises_in(args.file)
    if promises is None:
        return 1
    text = _HEAD + yaml.safe_dump(
        rules(promises, runbooks=args.runbooks), sort_keys=False, width=_WIDTH, allow_unicode=True
    )
    if args.out is None:
        print(text, end="")
    elif not _written(args.out, text):
        return 1
    if not any(list(each.objectives()) or each.cost_usd_per_1k_tokens is not None for each in promises):
        hint = "write classes.NAME.objectives for alerts before a promise is broken"
        print(f"headgate: {args.file} promises nothing of any class; {hint}", file=sys.stderr)
    return 0


def _written(file: Path, text: str) -> bool:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"headgate: {file} cannot be written: {error.strerror}", file=sys.stderr)
        return False
    print(f"{file} is written; name it under rule_files of Prometheus and reload it", file=sys.stderr)
    return True
