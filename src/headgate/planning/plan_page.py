"""HTML report of a capacity plan: one self-contained page."""

from collections.abc import Iterator
from html import escape

from headgate.planning.plan import CapacityPlan, peak_per_s
from headgate.planning.plan_report import (
    cost_sentence,
    doubled_sentence,
    format_endpoints,
    plan_tables,
    step_sentence,
    window_sentence,
)
from headgate.planning.suggestion import alert_rules, suggested_configuration
from headgate.simulation.report.cost import cost_per
from headgate.simulation.report.html_page import (
    chart_section,
    figure_list,
    html_page,
    matplotlib_required,
    table_section,
)
from headgate.simulation.report.text_table import format_percent, format_rate, format_usd


def render_plan_page(plan: CapacityPlan) -> str:
    return html_page(plan.given.title, _body(plan))


def _body(plan: CapacityPlan) -> Iterator[str]:
    with matplotlib_required():
        # The import takes half a second and 40 MB, and only the HTML report needs it.
        from headgate.planning.plan_charts import plan_charts  # noqa: PLC0415 (see above)
    answer = f"{format_endpoints(plan.endpoints)} hold the objectives"
    yield f"<header><h1>{escape(plan.given.title)}</h1><p><b>{escape(answer)}</b></p>"
    yield from figure_list(_key_figures(plan))
    sentences = (cost_sentence(plan), step_sentence(plan), doubled_sentence(plan), window_sentence(plan))
    yield f"<p class=quiet>{'<br>'.join(map(escape, sentences))}</p></header>"
    for chart in plan_charts(plan):
        yield from chart_section(chart)
    for titled in plan_tables(plan):
        yield from table_section(titled.title, titled.rows, titled.notes)
    yield f"<section><h2>Suggested configuration</h2><pre>{escape(suggested_configuration(plan))}</pre></section>"
    yield f"<section><h2>Alert rules for Prometheus</h2><pre>{escape(alert_rules(plan))}</pre></section>"


def _key_figures(plan: CapacityPlan) -> Iterator[tuple[str, str]]:
    yield str(sum(count for _, count in plan.endpoints)), f"endpoints, {format_percent(plan.given.headroom)} headroom"
    yield format_rate(peak_per_s(plan.given.workload)), "requests per second at the peak"
    if plan.cost.pools:
        yield format_usd(plan.cost.total), "per day"
        yield format_usd(cost_per(1_000 * plan.cost.total, plan.cost.requests)), "per thousand requests"
        yield format_usd(plan.cost.per_1m_tokens), "per million tokens"
    if plan.next_step is not None:
        when = "" if plan.next_step_date is None else f", on {plan.next_step_date}"
        yield f"{plan.next_step:.2f} x", f"traffic at the next step{when}"
