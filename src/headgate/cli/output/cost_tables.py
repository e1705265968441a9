"""Cost reports as text tables of limited width.

All amounts in a table have the same number of decimals, chosen for the largest amount, so that columns line up.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any

from headgate.ledger.reports.statement import round_to_sum

WIDTH = 120
TEXT_WIDTH_MIN = 12
"""Minimum width to which text columns can shrink."""
IDLE = "(idle)"
"""Name of the row for idle time that is not divided among the other rows."""
_IDLE_NOTE = "idle: cost of idle endpoints, shared by current weight among the tenants that existed at the time"
_NANO = 1_000_000_000
_Show = Callable[[Mapping[str, Any]], str]
_CAUSES = {
    "retry": "failed attempts that were retried",
    "hedge": "attempts superseded by a hedge",
    "mirror": "mirrored copies of requests",
    "deadline_exceeded": "attempts past their deadline",
    "engine_error": "attempts that failed without a retry",
    "shutdown": "attempts aborted by a gateway shutdown",
}
_DRIFT = {
    "traffic": "number of requests",
    "mix": "mix of tenants, models, classes, pools",
    "tokens_in": "prompt length",
    "tokens_out": "output length",
    "cache": "prefix cache hits",
    "batching": "engine time per token (batching)",
    "price": "prices",
    "retries": "retries and other wasted attempts",
    "idle": "idle endpoints",
    "unready": "endpoints not ready",
    "unexplained": "unexplained",
}


def lines(name: str, answer: Mapping[str, Any]) -> list[str]:
    match name:
        case "statement":
            return [line for each in answer["data"] for line in (*_statement(each), "")][:-1]
        case "forecast":
            return _forecast(answer)
        case "drift":
            return _drift(answer)
        case "request":
            return _request(answer)
        case _:
            return _report(answer)


# Costs


def _report(answer: Mapping[str, Any]) -> list[str]:
    shown: list[Mapping[str, Any]] = [*answer["lines"], {**answer["total"], "name": "total"}]
    money = Money(line["cost_nano_usd"] for line in shown)
    small = Money((line["thousand_tokens_nano_usd"] or 0 for line in shown), finer=2)
    each = Money((line["request_nano_usd"] or 0 for line in shown), finer=2)
    words = ("INPUT", "OUTPUT", "OVERHEAD", "RETRIES", "IDLE", "COST")
    spent: list[tuple[str, _Show]] = [
        *((f"{word}$", _amount(money, f"{word.lower()}_nano_usd")) for word in words),
        ("SHARE", lambda line: f"{100 * line['share']:.1f}%"),
        ("$/REQ", _amount(each, "request_nano_usd")),
        ("$/1K TOK", _amount(small, "thousand_tokens_nano_usd")),
    ]
    took: list[tuple[str, _Show]] = [
        ("REQUESTS", lambda line: count_text(line["requests"])),
        ("UNSENT", lambda line: count_text(line["unsent"])),
        ("ATTEMPTS", lambda line: count_text(line["attempts"])),
        ("TOKENS IN", lambda line: count_text(line["tokens_in"])),
        ("CACHED", lambda line: count_text(line["tokens_cached"])),
        ("TOKENS OUT", lambda line: count_text(line["tokens_out"])),
        ("ENGINE TIME", lambda line: engine_time_text(line["engine_us"])),
    ]
    span = f"{_day(answer['since'])} to {_day(answer['until'], end=True)} UTC"
    if answer["resolution"] == "hour":
        span += ", from hourly sums"
    # Idle time has no requests.
    ran = [line for line in shown if line["name"] != IDLE]
    made = [f"{span}, in US dollars", *_columns(spent, shown, answer), "", *_columns(took, ran, answer)]
    idle = answer["total"]["idle_nano_usd"]
    if idle:
        made += ["", _IDLE_NOTE]
    if answer["account"] is not None:
        made += ["", *_account("endpoint cost by use", answer["account"], shared=idle)]
    for pool, account in answer["accounts"].items():
        made += ["", *_account(f"pool {printable(pool)}", account, shared=idle)]
    return made


_OPTIONAL_COLUMNS = {
    "UNSENT": "unsent",
    "CACHED": "tokens_cached",
    "RETRIES$": "retries_nano_usd",
    "IDLE$": "idle_nano_usd",
}
"""Columns that are omitted if they total 0."""


def _columns(
    columns: Sequence[tuple[str, _Show]], shown: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]
) -> list[str]:
    told = [each for each in columns if each[0] not in _OPTIONAL_COLUMNS or answer["total"][_OPTIONAL_COLUMNS[each[0]]]]
    rows = [[_named(line["name"], answer["by"]), *(show(line) for _, show in told)] for line in shown]
    made = table([answer["by"].upper(), *(title for title, _ in told)], rows, total=True)
    if answer["lines_omitted"]:
        made.insert(-2, f"({answer['lines_omitted']} cheaper rows omitted; raise --limit)")
    return made


def _named(name: str, by: str) -> str:
    unnamed = {"pool": "(not sent)", "model": "(not served)", "class": "(rejected before classification)"}
    return printable(name) or unnamed.get(by, "(none)")


def _account(title: str, account: Mapping[str, Any], *, shared: int) -> list[str]:
    paid = account["paid_time_nano_usd"] + account["paid_tokens_nano_usd"]
    money = Money([paid])
    parts = [
        ("attributed to tenants", account["attributed_nano_usd"]),
        *((f"wasted: {_CAUSES.get(cause, cause)}", cost) for cause, cost in account["waste_nano_usd"].items()),
        ("starting", account["starting_nano_usd"]),
        ("not ready", account["unready_nano_usd"]),
        ("stopped late", account["late_nano_usd"]),
        ("idle, shared among the tenants that may use it" if shared else "idle", account["idle_nano_usd"]),
    ]
    shown = [(name, cost) for name, cost in parts if cost or name.startswith(("attributed", "idle"))]
    shown.append(("unexplained", account["unexplained_nano_usd"]))
    rows = [[name, money(cost), _percent(cost, paid)] for name, cost in shown]
    of_time, of_tokens = account["paid_time_nano_usd"], account["paid_tokens_nano_usd"]
    both = f" ({money(of_time)} per hour, {money(of_tokens)} per token)" if of_time and of_tokens else ""
    return table([title, "$", "OF PAID"], [*rows, ["paid" + both, money(paid), ""]], total=True)


def _percent(cost: int, whole: int) -> str:
    return f"{100 * cost / whole:.2f}%" if whole else "-"


# One request


def _request(answer: Mapping[str, Any]) -> list[str]:
    attempts = answer["attempts"]
    money = Money((each["cost_nano_usd"] for each in (*attempts, answer)), finer=3)
    about = [answer["tenant"], answer["service_class"], answer["model"], *_pairs(answer["metadata"])]
    made = _wrapped(f"{printable(answer['request'])}: {answer['outcome']}, arrived {_moment(answer['at'])} UTC")
    made += [*_wrapped(", ".join(printable(each) for each in about if each), indent="  "), ""]
    rows = [
        [
            str(each["attempt"]) + (f" (correction {each['correction']})" if each["correction"] else ""),
            printable(each["endpoint"]) or "(not sent)",
            each["cause"] or "-",
            each["payer"] or "-",
            count_text(each["tokens_in"])
            + (f" ({count_text(each['tokens_cached'])} cached)" if each["tokens_cached"] else ""),
            count_text(each["tokens_out"]),
            engine_time_text(each["engine_us"]),
            *(money(each[f"{part}_nano_usd"]) for part in ("input", "output", "overhead", "cost")),
        ]
        for each in attempts
    ]
    titles = ["ATTEMPT", "ENDPOINT", "CAUSE", "PAYER", "IN", "OUT", "ENGINE", "INPUT$", "OUTPUT$", "OVERHEAD$", "COST$"]
    made += table(titles, rows, text_columns=(0, 1, 2, 3))
    parts = ("input", "output", "overhead", "retries")
    said = " + ".join(f"{part} {money(answer[f'{part}_nano_usd'])}" for part in parts)
    made += ["", *_wrapped(f"{said} = {money(answer['cost_nano_usd'])} $")]
    before, charged = money(answer["reserved_nano_usd"]), money(answer["charged_nano_usd"])
    made += _wrapped(f"reserved at admission: {before} $; charged to {printable(answer['tenant'])}: {charged} $")
    if any(each["usage_source"] == "estimated" for each in attempts):
        made.append("some token counts are estimated: the engine reported none")
    return made


def _pairs(metadata: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in metadata.items()]


# A month


def _statement(statement: Mapping[str, Any]) -> list[str]:
    charged = [line["charged_nano_usd"] for line in statement["lines"]]
    money = Money([statement["charged_nano_usd"]])
    # Rounded amounts add up to the rounded total.
    shown = round_to_sum(charged, money.unit)
    rows = [
        [
            printable(line["path"]),
            f"idle time of pool {printable(line['model'])}" if line["kind"] == "idle" else printable(line["model"]),
            printable(line["service_class"]) or "-",
            *(count_text(line[name]) for name in ("requests", "tokens_in", "tokens_cached", "tokens_out")),
            money(amount * money.unit),
        ]
        for line, amount in zip(statement["lines"], shown, strict=True)
    ]
    sums = (
        count_text(sum(line[name] for line in statement["lines"]))
        for name in ("requests", "tokens_in", "tokens_cached")
    )
    out = count_text(sum(line["tokens_out"] for line in statement["lines"]))
    rows.append(["total", "", "", *sums, out, money(sum(shown) * money.unit)])
    so_far = "" if statement["complete"] else ", month to date"
    titles = ["PATH", "MODEL", "CLASS", "REQUESTS", "IN", "CACHED", "OUT", "CHARGED$"]
    made = _wrapped(f"{printable(statement['tenant'])}, {statement['month']}{so_far}, in US dollars")
    made += table(titles, rows, text_columns=(0, 1, 2), total=True)
    return [*made, _IDLE_NOTE] if any(line["kind"] == "idle" for line in statement["lines"]) else made


# Forecasts


def _forecast(answer: Mapping[str, Any]) -> list[str]:
    forecasts = answer["forecasts"]
    money = Money(each["expected_nano_usd"] for each in forecasts)
    words = {"paid": "paid for {}", "charged": "charged to {}", "tenant": "  {}"}
    rows = [
        [
            words[each["kind"]].format(printable(each["name"])),
            *(money(each[f"{name}_nano_usd"]) for name in ("spent", "expected", "low", "high")),
            each["method"],
            "-" if each["error"] is None else f"{100 * each['error']:.0f}%",
            *_budget_cells(each, money),
        ]
        for each in forecasts
    ]
    certain = f"{answer['certainty_percent']}%"
    titles = ["", "SO FAR$", "EXPECTED$", f"{certain} FROM$", "TO$", "METHOD", "ERROR", "BUDGET$", "OF BUDGET"]
    if not any(each["budget_nano_usd"] for each in forecasts):
        titles, rows = titles[:-2], [row[:-2] for row in rows]
    made = [f"{answer['month']}, forecast from the last {answer['days_known']} days, in US dollars"]
    made += table(titles, rows)
    if any(
        each["budget_nano_usd"] and each["budget_expected_nano_usd"] != each["expected_nano_usd"] for each in forecasts
    ):
        made.append("of budget: excludes shared idle time, which does not count toward budgets")
    if answer["days_known"] < 14:
        made.append("with less than 14 days of data, weekdays are not distinguished")
    return made


def _budget_cells(forecast: Mapping[str, Any], money: "Money") -> tuple[str, str]:
    budget = forecast["budget_nano_usd"]
    if not budget:
        return "-", "-"
    part = 100 * forecast["budget_expected_nano_usd"] / budget
    over = "" if part <= 100 else ", will reject" if forecast["hard"] else ", over"
    return money(budget), f"{part:.0f}%{over}"


# Drift


def _drift(answer: Mapping[str, Any]) -> list[str]:
    money = Money([answer["before_nano_usd"], answer["today_nano_usd"]])
    rows = [
        [
            str(_DRIFT.get(part["cause"], part["cause"])),
            money(part["change_nano_usd"], signed=True),
            f"{part['percent']:+.1f}%",
            f"{part['kind']} {printable(part['name'])}" if part["name"] else "-",
            money(part["name_change_nano_usd"], signed=True) if part["name"] else "-",
        ]
        for part in answer["parts"]
        if abs(part["percent"]) >= 0.05
    ]
    small = sum(part["change_nano_usd"] for part in answer["parts"] if abs(part["percent"]) < 0.05)
    if small:
        rows.append(["other", money(small, signed=True), "", "", ""])
    rows.append(["change", money(answer["change_nano_usd"], signed=True), f"{answer['percent']:+.1f}%", "", ""])
    days = f"the mean of the previous {answer['days_before']} days"
    whole = answer["until"] % (86_400 * _NANO) == 0
    up_to = ("", "") if whole else (f" up to {_moment(answer['until'])[11:16]} UTC", " up to the same hour")
    made = [f"{answer['day']}{up_to[0]}, compared with {days}{up_to[1]}"]
    made.append(f"{money(answer['today_nano_usd'])} $ compared with {money(answer['before_nano_usd'])} $")
    made += ["", *_wrapped(printable(answer["sentence"]))]
    if not answer["parts"]:
        return made
    made.append("")
    return [
        *made,
        *table(["CAUSE", "CHANGE$", "CHANGE %", "MAINLY", "AMOUNT$"], rows, text_columns=(0, 3), total=True),
    ]


# Numbers and tables


class Money:
    """Formats dollar amounts with a precision that is meaningful next to the largest amount."""

    def __init__(self, amounts: Iterable[int], *, finer: int = 0) -> None:
        largest = max((abs(amount) for amount in amounts), default=0)
        digits = 2 if largest >= 1_000 * _NANO else 4 if largest >= _NANO else 6
        self._digits = min(9, digits + finer)
        self.unit = 10 ** (9 - self._digits)

    def __call__(self, nano: int | None, *, signed: bool = False) -> str:
        if nano is None:
            return "-"
        units = (2 * abs(nano) + self.unit) // (2 * self.unit)
        scale = 10**self._digits
        sign = "-" if nano < 0 and units else "+" if signed and units else ""
        return f"{sign}{units // scale:,}.{units % scale:0{self._digits}}"


def _amount(money: Money, field: str) -> _Show:
    return lambda line: money(line[field])


def count_text(number: int) -> str:
    for unit, size in (("B", 1_000_000_000), ("M", 1_000_000)):
        if abs(number) >= 10 * size:
            return f"{number / size:,.1f}{unit}"
    return f"{number / 1_000:,.0f}K" if abs(number) >= 1_000_000 else f"{number:,}"


def engine_time_text(us: int) -> str:
    seconds = us / 1e6
    if seconds >= 36_000:
        return f"{seconds / 3_600:,.1f}h"
    return f"{seconds:,.0f}s" if seconds >= 100 else f"{seconds:.2f}s"


def printable(text: str) -> str:
    """Text without control characters, which could change the terminal's behaviour."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _wrapped(text: str, *, indent: str = "") -> list[str]:
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent or "  ") or [""]


def table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: Sequence[int] = (0,), total: bool = False
) -> list[str]:
    """Formats a table. Columns in `text_columns` contain text, and the others contain numbers. The widest text columns
    shrink to fit.
    """
    every = [titles, *rows]
    widths = [max(len(cell) for cell in column) for column in zip(*every, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        widest = max(text_columns, key=lambda place: widths[place])
        if widths[widest] <= TEXT_WIDTH_MIN:
            break
        widths[widest] -= 1
    made = [_line(row, widths, text_columns) for row in every]
    if total:
        made.insert(-1, "-" * len(made[-1]))
    return made


def _line(row: Sequence[str], widths: Sequence[int], words: Sequence[int]) -> str:
    cells = [
        _cut(cell, width).ljust(width) if place in words else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _moment(instant: int) -> str:
    return datetime.fromtimestamp(instant / _NANO, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _day(instant: int, *, end: bool = False) -> str:
    """The day, followed by the time unless it is midnight. With `end`, the last day before the instant."""
    if instant % (86_400 * _NANO):
        return datetime.fromtimestamp(instant / _NANO, UTC).strftime("%Y-%m-%d %H:%M")
    return datetime.fromtimestamp(instant / _NANO - (1 if end else 0), UTC).strftime("%Y-%m-%d")
