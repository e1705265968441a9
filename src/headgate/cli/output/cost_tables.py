"""How is a report shown to people?

Tables no wider than a terminal. All amounts of a table have the same number of digits, so that they can be compared by
their length: as many as make sense beside the largest of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any

from headgate.ledger.reports.statement import rounded

WIDTH = 120
WORDS_MIN = 12
"""Columns of words give way down to this."""
IDLE = "(idle)"
"""How a gateway names the line of idle time that cannot be divided among the others."""
_SHARED = "idle: what tenants bear of endpoints that stood idle, by the weights they have today, since each was made"
_NANO = 1_000_000_000
_Show = Callable[[Mapping[str, Any]], str]
_CAUSES = {
    "retry": "attempts that failed and were made anew",
    "hedge": "attempts that another one overtook",
    "expired": "attempts that came too late",
    "engine_failed": "attempts that failed for good",
    "leaving": "attempts cut off by a gateway that left",
}
_DRIFT = {
    "traffic": "number of requests",
    "mix": "mix of tenants, models, classes, pools",
    "tokens_in": "length of prompts",
    "tokens_out": "length of outputs",
    "cache": "prompts that were cached",
    "batching": "engine time per token (batching)",
    "price": "prices",
    "retries": "retries and other vain attempts",
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


# What was spent


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
        ("REQUESTS", lambda line: count(line["requests"])),
        ("UNSENT", lambda line: count(line["unsent"])),
        ("ATTEMPTS", lambda line: count(line["attempts"])),
        ("TOKENS IN", lambda line: count(line["tokens_in"])),
        ("CACHED", lambda line: count(line["tokens_cached"])),
        ("TOKENS OUT", lambda line: count(line["tokens_out"])),
        ("ENGINE TIME", lambda line: length(line["engine_us"])),
    ]
    span = f"{_day(answer['since'])} to {_day(answer['until'], end=True)} UTC"
    # Nothing ran while endpoints stood idle.
    ran = [line for line in shown if line["name"] != IDLE]
    made = [f"{span}, in US dollars", *_columns(spent, shown, answer), "", *_columns(took, ran, answer)]
    idle = answer["total"]["idle_nano_usd"]
    if idle:
        made += ["", _SHARED]
    if answer["account"] is not None:
        made += ["", *_account("what endpoints cost, and on what it was spent", answer["account"], shared=idle)]
    for pool, account in answer["accounts"].items():
        made += ["", *_account(f"pool {printable(pool)}", account, shared=idle)]
    return made


_WHERE_ANY = {"UNSENT": "unsent", "CACHED": "tokens_cached", "RETRIES$": "retries_nano_usd", "IDLE$": "idle_nano_usd"}
"""Columns that are shown where there is any of it."""


def _columns(
    columns: Sequence[tuple[str, _Show]], shown: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]
) -> list[str]:
    told = [each for each in columns if each[0] not in _WHERE_ANY or answer["total"][_WHERE_ANY[each[0]]]]
    rows = [[_named(line["name"], answer["by"]), *(show(line) for _, show in told)] for line in shown]
    made = table([answer["by"].upper(), *(title for title, _ in told)], rows, total=True)
    if answer["left_out"]:
        made.insert(-2, f"({answer['left_out']} more, which cost less: --limit)")
    return made


def _named(name: str, by: str) -> str:
    unnamed = {"pool": "(not sent)", "model": "(not served)", "class": "(refused before it had one)"}
    return printable(name) or unnamed.get(by, "(none)")


def _account(title: str, account: Mapping[str, Any], *, shared: int) -> list[str]:
    paid = account["paid_time_nano_usd"] + account["paid_tokens_nano_usd"]
    money = Money([paid])
    parts = [
        ("attributed to tenants", account["attributed_nano_usd"]),
        *((f"in vain: {_CAUSES.get(cause, cause)}", cost) for cause, cost in account["waste_nano_usd"].items()),
        ("starting", account["starting_nano_usd"]),
        ("not ready", account["unready_nano_usd"]),
        ("late to stop", account["late_nano_usd"]),
        ("idle, shared by tenants where they may use it" if shared else "idle", account["idle_nano_usd"]),
    ]
    shown = [(name, cost) for name, cost in parts if cost or name.startswith(("attributed", "idle"))]
    shown.append(("unexplained", account["unexplained_nano_usd"]))
    rows = [[name, money(cost), _percent(cost, paid)] for name, cost in shown]
    of_time, of_tokens = account["paid_time_nano_usd"], account["paid_tokens_nano_usd"]
    both = f" ({money(of_time)} by the hour, {money(of_tokens)} by the token)" if of_time and of_tokens else ""
    return table([title, "$", "OF PAID"], [*rows, ["paid" + both, money(paid), ""]], total=True)


def _percent(cost: int, whole: int) -> str:
    return f"{100 * cost / whole:.2f}%" if whole else "-"


# One request


def _request(answer: Mapping[str, Any]) -> list[str]:
    attempts = answer["attempts"]
    money = Money((each["cost_nano_usd"] for each in (*attempts, answer)), finer=3)
    about = [answer["tenant"], answer["service_class"], answer["model"], *_pairs(answer["metadata"])]
    made = _said(f"{printable(answer['request'])}: {answer['outcome']}, arrived {_moment(answer['at'])} UTC")
    made += [*_said(", ".join(printable(each) for each in about if each), indent="  "), ""]
    rows = [
        [
            str(each["attempt"]) + (f" (correction {each['correction']})" if each["correction"] else ""),
            printable(each["endpoint"]) or "(not sent)",
            each["cause"] or "-",
            each["payer"] or "-",
            count(each["tokens_in"]) + (f" ({count(each['tokens_cached'])} cached)" if each["tokens_cached"] else ""),
            count(each["tokens_out"]),
            length(each["engine_us"]),
            *(money(each[f"{part}_nano_usd"]) for part in ("input", "output", "overhead", "cost")),
        ]
        for each in attempts
    ]
    titles = ["ATTEMPT", "ENDPOINT", "CAUSE", "PAYS", "IN", "OUT", "ENGINE", "INPUT$", "OUTPUT$", "OVERHEAD$", "COST$"]
    made += table(titles, rows, words=(0, 1, 2, 3))
    parts = ("input", "output", "overhead", "retries")
    said = " + ".join(f"{part} {money(answer[f'{part}_nano_usd'])}" for part in parts)
    made += ["", *_said(f"{said} = {money(answer['cost_nano_usd'])} $")]
    before, charged = money(answer["reserved_nano_usd"]), money(answer["charged_nano_usd"])
    made += _said(
        f"before: at most {before} $ was reserved; after: {charged} $ was charged to {printable(answer['tenant'])}"
    )
    if any(each["usage_source"] == "estimated" for each in attempts):
        made.append("some tokens are estimated: the engine told none")
    return made


def _pairs(metadata: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in metadata.items()]


# A month


def _statement(statement: Mapping[str, Any]) -> list[str]:
    charged = [line["charged_nano_usd"] for line in statement["lines"]]
    money = Money([statement["charged_nano_usd"]])
    # So that what is shown adds up too.
    shown = rounded(charged, money.unit)
    rows = [
        [
            printable(line["path"]),
            f"idle time of pool {printable(line['model'])}" if line["kind"] == "idle" else printable(line["model"]),
            printable(line["service_class"]) or "-",
            *(count(line[name]) for name in ("requests", "tokens_in", "tokens_cached", "tokens_out")),
            money(amount * money.unit),
        ]
        for line, amount in zip(statement["lines"], shown, strict=True)
    ]
    sums = (
        count(sum(line[name] for line in statement["lines"])) for name in ("requests", "tokens_in", "tokens_cached")
    )
    out = count(sum(line["tokens_out"] for line in statement["lines"]))
    rows.append(["total", "", "", *sums, out, money(sum(shown) * money.unit)])
    so_far = "" if statement["complete"] else ", so far: the month is not over"
    titles = ["PATH", "MODEL", "CLASS", "REQUESTS", "IN", "CACHED", "OUT", "CHARGED$"]
    made = _said(f"{printable(statement['tenant'])}, {statement['month']}{so_far}, in US dollars")
    made += table(titles, rows, words=(0, 1, 2), total=True)
    return [*made, _SHARED] if any(line["kind"] == "idle" for line in statement["lines"]) else made


# What is to come


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
            *_against(each, money),
        ]
        for each in forecasts
    ]
    certain = f"{answer['certainty_percent']}%"
    titles = ["", "SO FAR$", "EXPECTED$", f"{certain} FROM$", "TO$", "METHOD", "ERROR", "BUDGET$", "OF BUDGET"]
    if not any(each["budget_nano_usd"] for each in forecasts):
        titles, rows = titles[:-2], [row[:-2] for row in rows]
    made = [f"{answer['month']}, from {answer['days_known']} days before today, in US dollars"]
    made += table(titles, rows)
    if any(
        each["budget_nano_usd"] and each["budget_expected_nano_usd"] != each["expected_nano_usd"] for each in forecasts
    ):
        made.append("of budget: without idle time that tenants share, which counts for no budget")
    if answer["days_known"] < 14:
        made.append("with fewer than 14 days the days of the week are not told apart")
    return made


def _against(forecast: Mapping[str, Any], money: "Money") -> tuple[str, str]:
    budget = forecast["budget_nano_usd"]
    if not budget:
        return "-", "-"
    part = 100 * forecast["budget_expected_nano_usd"] / budget
    over = "" if part <= 100 else ", will be refused" if forecast["hard"] else ", over"
    return money(budget), f"{part:.0f}%{over}"


# What is different


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
        rows.append(["the rest", money(small, signed=True), "", "", ""])
    rows.append(["change", money(answer["change_nano_usd"], signed=True), f"{answer['percent']:+.1f}%", "", ""])
    days = f"the mean of {answer['days_before']} days before it"
    whole = answer["until"] % (86_400 * _NANO) == 0
    up_to = ("", "") if whole else (f" up to {_moment(answer['until'])[11:16]} UTC", " up to the same hour")
    made = [f"{answer['day']}{up_to[0]}, against {days}{up_to[1]}"]
    made.append(f"{money(answer['today_nano_usd'])} $ against {money(answer['before_nano_usd'])} $")
    made += ["", *_said(printable(answer["sentence"]))]
    if not answer["parts"]:
        return made
    made.append("")
    return [*made, *table(["CAUSE", "CHANGE$", "OF BEFORE", "ABOVE ALL", "OF IT$"], rows, words=(0, 3), total=True)]


# Numbers, and tables of them


class Money:
    """Dollars with as many digits as make sense beside the largest amount."""

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


def count(number: int) -> str:
    for unit, size in (("B", 1_000_000_000), ("M", 1_000_000)):
        if abs(number) >= 10 * size:
            return f"{number / size:,.1f}{unit}"
    return f"{number / 1_000:,.0f}K" if abs(number) >= 1_000_000 else f"{number:,}"


def length(us: int) -> str:
    seconds = us / 1e6
    if seconds >= 36_000:
        return f"{seconds / 3_600:,.1f}h"
    return f"{seconds:,.0f}s" if seconds >= 100 else f"{seconds:.2f}s"


def printable(text: str) -> str:
    """What others have written cannot command a terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _said(text: str, *, indent: str = "") -> list[str]:
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent or "  ") or [""]


def table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,), total: bool = False
) -> list[str]:
    """Some columns are words, the others numbers. Where all of it would be too wide the widest words give way."""
    every = [titles, *rows]
    widths = [max(len(cell) for cell in column) for column in zip(*every, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        widest = max(words, key=lambda place: widths[place])
        if widths[widest] <= WORDS_MIN:
            break
        widths[widest] -= 1
    made = [_line(row, widths, words) for row in every]
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
    """A day where it is a whole one; the last one that is in it, where it is the end."""
    if instant % (86_400 * _NANO):
        return datetime.fromtimestamp(instant / _NANO, UTC).strftime("%Y-%m-%d %H:%M")
    return datetime.fromtimestamp(instant / _NANO - (1 if end else 0), UTC).strftime("%Y-%m-%d")
