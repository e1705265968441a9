"""Tests for the HTML report."""

import re
import subprocess
import sys
from functools import cache
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headgate.model.units import Duration, EndpointId, Instant, TenantId
from headgate.simulation.options import Crash
from headgate.simulation.report.html_report import render_html
from headgate.simulation.report.text_report import tables
from tests.simulation.report.builders import S, a_full_report, a_report, a_scenario, a_story, refused
from tests.simulation.report.test_json_report import run

TITLES = [
    "Requests by result and arrival time",
    "Queue length by class",
    "Latency distribution",
    "Attainment by class",
    "Attainment by tenant",
    "Engines over time",
    "Engine time by request result",
]
VOID = {"meta", "br", "path", "use"}


class Outline(HTMLParser):
    """Collects headings, cells and identifiers, and asserts that tags match."""

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
    """Renders the page once, because charts are slow."""
    return render_html(a_full_report())


def test_page_contains_every_chart_and_table() -> None:
    report, text = a_full_report(), full_page()
    seen = outline(text)

    assert seen.headings == TITLES + [each.title for each in tables(report)]
    assert text.count("<svg ") == len(TITLES)
    assert seen.cells == sum(len(row) for each in tables(report) for row in each.rows[1:])


def test_page_loads_no_external_resources() -> None:
    text = full_page()

    assert "<script" not in text
    assert all(link.startswith("#") for link in outline(text).links)
    assert not re.search(r"@import|url\((?!#)", text)
    assert "dc:date" not in text


def test_scenario_title_is_escaped() -> None:
    text = render_html(a_report(a_story()))

    assert "A &lt;made-up&gt; run" in text
    assert "<made-up>" not in text


@pytest.mark.parametrize("name", [r"$\frac{a$", "a$b$c", "<b>", "a&b"])
def test_tenant_names_are_drawn_verbatim(name: str) -> None:
    text = render_html(a_report(*(a_story(number=number, tenant=TenantId(name)) for number in range(30))))
    drawn = text[text.index("Attainment by tenant") :]
    drawn = drawn[drawn.index("<svg") : drawn.index("</svg>")]

    assert f">{escape(name, quote=False)}</text>" in drawn


def test_svg_identifiers_do_not_conflict() -> None:
    text = full_page()
    named = re.findall(r'<(clipPath|path) id="([^"]+)"(.*?)(?:/>|</clipPath>)', text, flags=re.DOTALL)
    shapes: dict[str, set[str]] = {}
    for _, name, shape in named:
        shapes.setdefault(name, set()).add(shape)

    assert shapes
    assert {name for name, found in shapes.items() if len(found) > 1} == set()


def test_every_chart_has_an_aria_label() -> None:
    names = re.findall(r'<svg role="img" aria-label="([^"]+)" ', full_page())

    assert [name.partition(". ")[0] for name in names] == TITLES


def test_simultaneous_crashes_in_a_pool_have_one_label() -> None:
    together = tuple(Crash(EndpointId(f"main/{number}"), Instant(30 * S), Duration(20 * S)) for number in range(4))
    alone = Crash(EndpointId("main/2"), Instant(80 * S), Duration(20 * S))
    one = a_report(a_story(), scenario=a_scenario(engines=4, faults=(together[0], alone)))
    all_of_them = a_report(a_story(), scenario=a_scenario(engines=4, faults=(*together, alone)))
    text = render_html(all_of_them)

    assert text.count("crash main (4)") == 1
    assert text.count("crash main/2") == 1
    assert "crash main/0" not in text
    assert text.count("opacity: 0.16") == render_html(one).count("opacity: 0.16") > 0


@pytest.mark.parametrize(
    ("stories", "charts"),
    [
        ([], 1),
        ([a_story()], 5),
        ([refused()], 4),
    ],
    ids=["empty", "one", "none completed"],
)
def test_page_omits_charts_without_data(stories: list[object], charts: int) -> None:
    assert render_html(a_report(*stories)).count("<svg ") == charts  # type: ignore[arg-type]


def test_page_for_an_empty_run_has_its_tables() -> None:
    assert outline(render_html(a_report(scenario=a_scenario(engines=0)))).headings == [
        "Requests by result",
        "Tokens and engine time",
    ]


def test_many_tenants_and_engines_are_drawn_as_distributions() -> None:
    text = render_html(a_full_report(tenants=300, engines=12))

    assert "Left: tenants with at least 20 requests" in text
    assert "Mean and range across 12 engines" in text


PROGRAM = """
import sys
from headgate.simulation.report.html_report import render_html
from tests.simulation.report.builders import a_full_report
sys.stdout.write(render_html(a_full_report(3)))
"""


@pytest.mark.process
def test_page_does_not_depend_on_the_hash_seed() -> None:
    first = run(PROGRAM, "0")

    assert run(PROGRAM, "1") == first
    assert first.endswith("</html>\n")


WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from headgate.simulation.report.html_page import ChartsMissing
from headgate.simulation.report.html_report import render_html
from headgate.simulation.report.text_report import render_text
from tests.simulation.report.builders import a_report, a_story
report = a_report(a_story())
assert "goodput" in render_text(report, 99)
try:
    render_html(report)
except ChartsMissing as missing:
    print(missing)
"""


@pytest.mark.process
def test_missing_matplotlib_error_names_the_package_to_install() -> None:
    assert "pip install matplotlib" in run(WITHOUT_MATPLOTLIB, "0")


@pytest.mark.process
def test_importing_the_page_module_does_not_load_matplotlib() -> None:
    program = "import sys, headgate.simulation.report.html_report; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=Path.cwd(), capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
