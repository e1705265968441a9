"""How does somebody get dashboards for Grafana?"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write them to")


def run(args: argparse.Namespace) -> int:
    folder: Path = args.out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"headgate: {folder} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    hint = "import them in Grafana, or name the folder in a provider of dashboards"
    print(f"{sum(1 for _ in files())} dashboards are written to {folder}; {hint}", file=sys.stderr)
    return 0


def files() -> Iterator[tuple[str, str]]:
    """Name and text of each."""
    import json

    from headgate.slo.dashboards import DASHBOARDS
    from headgate.slo.panel import dashboard_json

    for each in DASHBOARDS:
        yield f"{each.uid}.json", json.dumps(dashboard_json(each), indent=2) + "\n"
