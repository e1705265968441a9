"""Tests for HTML reports and costs of load tests."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from headgate.loadtest.cost import HourlyPrice, TokenPrice, cost_line, cost_of
from headgate.loadtest.problem import WorkloadError
from headgate.loadtest.tally import LoadTestTally
from testing.fake_engine import Behaviour, FakeEngine
from tests.loadtest.command import loadtest, served

HOUR_NS = 3_600 * 10**9


def a_page(file: Path) -> str:
    page = file.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "<script" not in page
    for svg in re.findall(r"<svg .*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)
    return page


def test_page_of_a_run_has_charts_and_tables(tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    with served(FakeEngine()) as engine:
        engine.script.append(Behaviour(status=400))
        loadtest(engine.url, "--rate", "200", "--limit", "50", "--html", str(file), "--price-per-hour", "3")
        url = engine.url

    page = a_page(file)
    assert [page.count(tag) for tag in ("<svg ", "<table>")] == [2, 2]
    assert url in page
    assert "98.0%" in page
    assert "per million output tokens" in page


def test_page_of_two_targets_has_their_comparison(tmp_path: Path) -> None:
    file = tmp_path / "both.html"
    with served(FakeEngine()) as base, served(FakeEngine()) as other:
        loadtest(base.url, "--against", other.url, "--rate", "500", "--limit", "120", "--html", str(file))

    page = a_page(file)
    assert "no difference shown" in page
    assert page.count("<table>") == 5


def test_page_of_a_sweep_has_one_row_per_level(tmp_path: Path) -> None:
    file = tmp_path / "sweep.html"
    with served(FakeEngine()) as engine:
        loadtest(engine.url, "--rate", "100", "--duration", "0.2", "--sweep", "1,2", "--html", str(file))

    page = a_page(file)
    assert page.count("<tr>") == 3
    assert "highest load that holds the targets" in page or "no load holds the targets" in page


def test_unwritable_page_is_reported_before_the_run(tmp_path: Path) -> None:
    said = loadtest("http://127.0.0.1:1", "--rate", "1", "--html", str(tmp_path / "none" / "x.html"))

    assert said.code == 2
    assert "does not exist; create it first" in said.err


def test_cost_of_an_hour_is_divided_among_tokens_and_good_requests() -> None:
    cost = cost_of(HourlyPrice(4.0), LoadTestTally(good=2_000, output_tokens=500_000), HOUR_NS // 2)

    assert (cost.usd, cost.usd_per_million_output_tokens, cost.usd_per_thousand_good) == (2.0, 4.0, 1.0)
    assert cost_line(cost) == "cost $2: $4 per million output tokens, $1 per thousand good requests"


def test_cost_of_tokens_depends_on_prompts_and_outputs() -> None:
    cost = cost_of(TokenPrice.parse("0.5:1.5"), LoadTestTally(prompt_tokens=2_000_000, output_tokens=1_000_000), 0)

    assert (cost.usd, cost.usd_per_thousand_good) == (2.5, None)
    assert cost_line(cost_of(HourlyPrice(1.0), LoadTestTally(), HOUR_NS)) == "cost $1"


@pytest.mark.parametrize("text", ["1", "a:b", "1:-2", "1:inf", "1:2:3"])
def test_invalid_prices_are_rejected(text: str) -> None:
    with pytest.raises(WorkloadError, match="is not two prices"):
        TokenPrice.parse(text)


def test_cost_is_in_the_reports() -> None:
    with served(FakeEngine()) as engine:
        said = loadtest(engine.url, "--rate", "200", "--limit", "20", "--price-per-million", "1:2", "--json")
        text = loadtest(engine.url, "--rate", "200", "--limit", "20", "--price-per-million", "1:2").out

    total = said.json["total"]
    assert said.json["cost"]["usd"] == pytest.approx((total["prompt_tokens"] + 2 * total["output_tokens"]) / 1e6)
    assert "\ncost $" in text
