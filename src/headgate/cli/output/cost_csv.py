"""Cost reports as CSV.

The output has a header line followed by one line per row. Dollar amounts have nine decimals, so that the rows add up
exactly to the totals.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_USD = "_nano_usd"
_LINE = (
    *("requests", "unsent", "attempts", "tokens_in", "tokens_cached", "tokens_out", "engine_s"),
    *("input_usd", "output_usd", "overhead_usd", "retries_usd", "idle_usd", "cost_usd", "charged_usd"),
    *("request_usd", "thousand_tokens_usd", "share"),
)
_STATEMENT = (
    *("month", "tenant", "line", "path", "model", "class", "requests", "tokens_in", "tokens_cached", "tokens_out"),
    *("input_usd", "output_usd", "overhead_usd", "charged_usd"),
)
_FORECAST = (
    "kind",
    "name",
    "spent_usd",
    "expected_usd",
    "low_usd",
    "high_usd",
    "method",
    "error",
    "budget_usd",
    "budget_expected_usd",
)
_DRIFT = ("cause", "change_usd", "percent", "kind", "name", "name_change_usd")
_ATTEMPT = (
    *("attempt", "correction", "pool", "endpoint", "ending", "cause", "payer", "usage_source", "tokens_in"),
    *("tokens_cached", "tokens_out", "tokens_reasoning", "engine_s", "input_usd", "output_usd", "overhead_usd"),
    "cost_usd",
)


def lines(name: str, answer: Mapping[str, Any]) -> list[str]:
    match name:
        case "statement":
            return _csv_lines(_STATEMENT, _statement_rows(answer["data"]))
        case "forecast":
            return _csv_lines(_FORECAST, answer["forecasts"])
        case "drift":
            total = {"cause": "total", "change_nano_usd": answer["change_nano_usd"], "percent": answer["percent"]}
            return _csv_lines(_DRIFT, [*answer["parts"], total])
        case "request":
            return _csv_lines(_ATTEMPT, answer["attempts"])
        case _:
            return _csv_lines(("name", *_LINE), _report_rows(answer))


def usd(nano: int) -> str:
    """Dollar amount with nine decimals."""
    sign, amount = ("-" if nano < 0 else ""), abs(nano)
    return f"{sign}{amount // 1_000_000_000}.{amount % 1_000_000_000:09}"


def _report_rows(answer: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield from answer["lines"]
    if answer["lines_omitted"]:
        yield {"name": f"({answer['lines_omitted']} more)", **_rest(answer["total"], answer["lines"])}
    yield {**answer["total"], "name": "total"}


def _rest(total: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum of the omitted rows, so that all rows add up to the total."""
    added = [name for name in total if name not in ("name", "request_nano_usd", "thousand_tokens_nano_usd")]
    return {name: total[name] - sum(line[name] for line in shown) for name in added}


def _statement_rows(statements: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Each tenant's rows, followed by their total. If there are several tenants, a grand total follows."""
    for statement in statements:
        about = {"month": statement["month"], "tenant": statement["tenant"]}
        yield from (
            {**line, **about, "line": line["kind"], "class": line["service_class"]} for line in statement["lines"]
        )
        yield {**about, **_sums(statement["lines"]), "line": "total"}
    if len(statements) > 1:
        every = [line for statement in statements for line in statement["lines"]]
        yield {"month": statements[0]["month"], **_sums(every), "line": "total of all"}


def _sums(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = ("requests", "tokens_in", "tokens_cached", "tokens_out")
    amounts = ("input_nano_usd", "output_nano_usd", "overhead_nano_usd", "charged_nano_usd")
    return {name: sum(row[name] for row in rows) for name in (*names, *amounts)}


def _csv_lines(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row, column) for column in columns])
    return page.getvalue().removesuffix("\n").split("\n")


def _cell(row: Mapping[str, Any], column: str) -> str:
    if column.endswith("_usd"):
        nano = row.get(column.removesuffix("_usd") + _USD)
        return "" if nano is None else usd(nano)
    if column == "engine_s":
        us = row.get("engine_us")
        return "" if us is None else f"{us / 1e6:.6f}"
    value = row.get(column)
    if isinstance(value, float):
        return f"{value:.6f}"
    text = "" if value is None else str(value)
    # A spreadsheet would evaluate these as formulas.
    return f"'{text}" if isinstance(value, str) and text[:1] in "=+-@\t\r" and text else text
