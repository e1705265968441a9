"""Is the page whole, and the same for the same run?"""

import re
import subprocess
import sys
from functools import cache
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headgate.model.units import Duration, EndpointId, Instant, TenantId
from headgate.simulation.report.page import page
from headgate.simulation.report.table import tables
from headgate.simulation.virtual.scenario import Crash
from tests.simulation.report.builders import S, a_full_report, a_report, a_scenario, a_story, refused
from tests.simulation.report.test_figures import run

TITLES = [
    "What became of the requests, by when they arrived",
    "Queue length by class",
    "How long callers waited",
    "Attainment by class",
    "Attainment by tenant",
    "Engines over time",
    "Where the engine-seconds went",
]
VOID = {"meta", "br", "path", "use"}


class Outline(HTMLParser):
    """Headings, cells and identifiers; complains about tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.cells = 0
        self.identifiers: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.cells += tag == "td"
        for name, value in attrs:
            if name == "id":
                self.identifiers.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def outline(text: str) -> Outline:
    seen = Outline()
    seen.feed(text)
    seen.close()
    assert seen.open == []
    return seen


@cache
def full_page() -> str:
    """Drawn once: charts take a while."""
    return page(a_full_report())


def test_the_page_has_every_chart_and_every_table() -> None:
    report, text = a_full_report(), full_page()
    seen = outline(text)

    assert seen.headings == TITLES + [each.title for each in tables(report)]
    assert text.count("<svg ") == len(TITLES)
    assert seen.cells == sum(len(row) for each in tables(report) for row in each.rows[1:])


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = full_page()

    assert "<script" not in text
    assert all(link.startswith("#") for link in outline(text).links)
    assert not re.search(r"@import|url\((?!#)", text)
    assert "dc:date" not in text


def test_what_a_scenario_calls_itself_is_text_and_not_markup() -> None:
    text = page(a_report(a_story()))

    assert "A &lt;made-up&gt; run" in text
    assert "<made-up>" not in text


@pytest.mark.parametrize("name", [r"$\frac{a$", "a$b$c", "<b>", "a&b"])
def test_what_a_tenant_is_called_is_drawn_as_it_is(name: str) -> None:
    text = page(a_report(*(a_story(number=number, tenant=TenantId(name)) for number in range(30))))
    drawn = text[text.index("Attainment by tenant") :]
    drawn = drawn[drawn.index("<svg") : drawn.index("</svg>")]

    assert f">{escape(name, quote=False)}</text>" in drawn


def test_names_in_a_page_are_there_once_or_name_the_same() -> None:
    text = full_page()
    named = re.findall(r'<(clipPath|path) id="([^"]+)"(.*?)(?:/>|</clipPath>)', text, flags=re.DOTALL)
    shapes: dict[str, set[str]] = {}
    for _, name, shape in named:
        shapes.setdefault(name, set()).add(shape)

    assert shapes
    assert {name for name, found in shapes.items() if len(found) > 1} == set()


def test_every_chart_has_a_name_that_can_be_heard() -> None:
    names = re.findall(r'<svg role="img" aria-label="([^"]+)" ', full_page())

    assert [name.partition(". ")[0] for name in names] == TITLES


def test_a_pool_that_crashes_at_once_is_named_once() -> None:
    together = tuple(Crash(EndpointId(f"main/{number}"), Instant(30 * S), Duration(20 * S)) for number in range(4))
    alone = Crash(EndpointId("main/2"), Instant(80 * S), Duration(20 * S))
    one = a_report(a_story(), scenario=a_scenario(engines=4, faults=(together[0], alone)))
    all_of_them = a_report(a_story(), scenario=a_scenario(engines=4, faults=(*together, alone)))
    text = page(all_of_them)

    assert text.count("crash main (4)") == 1
    assert text.count("crash main/2") == 1
    assert "crash main/0" not in text
    assert text.count("opacity: 0.16") == page(one).count("opacity: 0.16") > 0


@pytest.mark.parametrize(
    ("stories", "charts"),
    [
        ([], 1),
        ([a_story()], 5),
        ([refused()], 4),
    ],
    ids=["empty", "one", "none completed"],
)
def test_a_run_with_little_to_tell_has_the_charts_that_say_something(stories: list[object], charts: int) -> None:
    assert page(a_report(*stories)).count("<svg ") == charts  # type: ignore[arg-type]


def test_a_run_without_engines_or_requests_still_has_a_page() -> None:
    assert outline(page(a_report(scenario=a_scenario(engines=0)))).headings == [
        "What became of the requests",
        "What it cost",
    ]


def test_many_tenants_and_engines_are_drawn_as_curves() -> None:
    text = page(a_full_report(tenants=300, engines=12))

    assert "Left: those with at least 20 requests" in text
    assert "the mean over 12 engines" in text


PROGRAM = """
import sys
from headgate.simulation.report.page import page
from tests.simulation.report.builders import a_full_report
sys.stdout.write(page(a_full_report(3)))
"""


@pytest.mark.process
def test_the_hash_seed_changes_no_byte_of_the_page() -> None:
    first = run(PROGRAM, "0")

    assert run(PROGRAM, "1") == first
    assert first.endswith("</html>\n")


WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from headgate.simulation.report.page import ChartsMissing, page
from headgate.simulation.report.table import text
from tests.simulation.report.builders import a_report, a_story
report = a_report(a_story())
assert "goodput" in text(report, 99)
try:
    page(report)
except ChartsMissing as missing:
    print(missing)
"""


@pytest.mark.process
def test_without_matplotlib_the_next_step_is_told() -> None:
    assert "pip install matplotlib" in run(WITHOUT_MATPLOTLIB, "0")


@pytest.mark.process
def test_only_a_page_loads_matplotlib() -> None:
    program = "import sys, headgate.simulation.report.page; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=Path.cwd(), capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
