"""Write the tables in docs/reference/metrics.md from src/headgate/telemetry/catalogue.py.

The tables are between two markers. The rest of the page is written by hand.

Usage: write_metrics_page.py [--check] [FILE]. With --check the script writes nothing and exits with status 1 if the
page is out of date.
"""

import re
import sys
from pathlib import Path

from headgate.telemetry.catalogue import SECTIONS, MetricDefinition

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "metrics.md"
BEGIN = "<!-- written by scripts/write_metrics_page.py: change src/headgate/telemetry/catalogue.py instead -->"
END = "<!-- from here on written by people -->"


def row(each: MetricDefinition) -> str:
    labels = ", ".join(f"`{label}`" for label in each.labels)
    when = f"Reported if {each.exposed_when}." if each.exposed_when else ""
    meaning = " ".join(part for part in (each.help, each.note, when) if part)
    return f"| `{each.name}` | {each.type} | {labels} | {meaning} |"


def tables() -> str:
    parts = [
        "\n".join(
            (f"## {title}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|", *map(row, described))
        )
        for title, described in SECTIONS.items()
    ]
    return "\n\n".join(parts)


def rewritten(page: str) -> str:
    found = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    assert len(found.findall(page)) == 1, "the page needs both markers, once"
    return found.sub(lambda _: f"{BEGIN}\n\n{tables()}\n\n{END}", page)


def main(arguments: list[str]) -> int:
    only_check = "--check" in arguments
    named = [each for each in arguments if not each.startswith("-")]
    path = Path(named[0]) if named else PAGE
    before = path.read_text()
    if before == (after := rewritten(before)):
        return 0
    print(f"{path.name}: {'is not what the catalogue says; run `just docs`' if only_check else 'written'}")
    if not only_check:
        path.write_text(after)
    return 1 if only_check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
