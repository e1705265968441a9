"""Grafana panels and dashboards as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SCHEMA_VERSION: Final = 39
WIDTH: Final = 24
"""Width of a dashboard, in Grafana columns."""
_HEIGHT: Final = 8
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    queries: tuple[tuple[str, str], ...]
    """Expressions and their legends, in Grafana's format: `{{class}}`."""
    unit: str = "short"
    kind: str = "timeseries"
    description: str = ""
    """Panel description that explains what to look for."""
    width: int = 8


@dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    panels: tuple[Panel, ...]


def dashboard_json(dashboard: Dashboard) -> Json:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["headgate"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "annotations": {"list": []},
        "panels": _layout(dashboard.panels),
    }


def _layout(panels: Sequence[Panel]) -> list[Json]:
    """Panels laid out from left to right, row by row."""
    placed: list[Json] = []
    x = y = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > WIDTH:
            x, y = 0, y + _HEIGHT
        placed.append(_panel_json(panel, number, {"x": x, "y": y, "w": panel.width, "h": _HEIGHT}))
        x += panel.width
    return placed


def _panel_json(panel: Panel, number: int, place: dict[str, int]) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "gridPos": place,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": _options(panel.kind),
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expr, "legendFormat": legend, "datasource": _DATASOURCE}
            for index, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _options(kind: str) -> Json:
    if kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "value_and_name",
        }
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
