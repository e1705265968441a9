"""JSON schema for the Grafana dashboards.

It follows Grafana's public documentation of the JSON model. It contains only the fields that we use, so that misspelt
fields are caught.
"""

from typing import Any

Schema = dict[str, Any]


def an_object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


def a_list(of: Schema, *, least: int = 1) -> Schema:
    return {"type": "array", "minItems": least, "items": of}


TEXT: Schema = {"type": "string", "minLength": 1}
WORDS: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
SOURCE = an_object(type={"const": "prometheus"}, uid={"const": "${datasource}"})
TARGET = an_object(refId={"type": "string", "pattern": "^[A-Z]$"}, expr=TEXT, legendFormat=WORDS, datasource=SOURCE)
PLACE = an_object(
    x={"type": "integer", "minimum": 0, "maximum": 23},
    y=COUNT,
    w={"type": "integer", "minimum": 1, "maximum": 24},
    h={"type": "integer", "minimum": 1},
)
UNIT: Schema = {"enum": ["short", "s", "reqps", "percentunit", "bytes", "currencyUSD"]}
PANEL = an_object(
    id={"type": "integer", "minimum": 1},
    type={"enum": ["timeseries", "stat"]},
    title=TEXT,
    description=WORDS,
    gridPos=PLACE,
    datasource=SOURCE,
    fieldConfig=an_object(defaults=an_object(unit=UNIT, min={"const": 0}), overrides=a_list({}, least=0)),
    options={"type": "object"},
    targets=a_list(TARGET),
)
DASHBOARD = an_object(
    uid={"type": "string", "pattern": "^[a-z-]{1,40}$"},
    title=TEXT,
    tags=a_list(TEXT),
    schemaVersion={"type": "integer", "minimum": 36},
    version=COUNT,
    editable={"type": "boolean"},
    graphTooltip={"enum": [0, 1, 2]},
    refresh=TEXT,
    time=an_object(**{"from": TEXT, "to": TEXT}),
    timezone=TEXT,
    templating=an_object(
        list=a_list(
            an_object(name={"const": "datasource"}, type={"const": "datasource"}, query={"const": "prometheus"})
        )
    ),
    annotations=an_object(list=a_list({}, least=0)),
    panels=a_list(PANEL),
)
