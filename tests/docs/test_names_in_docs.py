"""Names in the docs' code spans and examples exist in the source: settings, metrics, outcomes, paths and others."""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import pytest
import yaml
from msgspec import inspect

from headgate.config.schema import ConfigFile
from headgate.config.section import Section
from headgate.edge.admin import api, budgets, cell, cost, rollouts, tenants, traffic, trials
from headgate.edge.admin.route_permissions import ADMIN_API, API_PERMISSIONS
from headgate.loadtest.request import LoadTestOutcome
from headgate.model.money import BillCause
from headgate.model.outcome import Outcome
from headgate.simulation.report.request_result import RequestResult
from headgate.slo.durations import duration_format
from headgate.slo.rules import alert_groups
from headgate.telemetry.catalogue import METRICS
from tests.docs.pages import PAGES, code_spans, problems_by_page
from tests.house.small_tree import PROJECT
from tests.telemetry.slo.incidents import PROMISES

SOURCE_DIRECTORIES = ("src", "scripts", "bench", "deploy", "fuzz", "testing", "console/src", "scenarios")
SOURCE_SUFFIXES = {".py", ".sql", ".ts", ".yaml", ".yml", ".json", ".toml", ".service", ".sh", ".lua", ""}
METRIC_SUFFIXES = ("_bucket", "_count", "_sum")
NOT_OURS = {
    # Names from other systems: nginx, HAProxy, PostgreSQL, TensorRT-LLM, Triton, vLLM, Linux, Envoy, Kubernetes.
    *(
        "client_max_body_size",
        "max_fails",
        "proxy_ignore_client_abort",
        "proxy_next_upstream",
        "proxy_next_upstream_tries",
    ),
    *("proxy_ssl_verify", "proxy_ssl_trusted_certificate", "proxy_ssl_name", "tls_config", "UpstreamTlsContext"),
    *("proxy_read_timeout", "allow_connections", "pg_basebackup", "pg_stat_activity", "scheduler_reserve_full_isl"),
    *("dynamic_batching", "stream_interval", "tcp_migrate_req"),
    *("BackendSecurityPolicy", "InferencePool", "QuotaPolicy", "RequestMirror"),
    # A database that the reader creates, a term that the reader writes, a column of a public trace.
    *("headgate_broken", "my_term", "iat_cv"),
}
SNAKE_CASE = r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+"
CAMEL_CASE = r"[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+"
YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def source_words() -> set[str]:
    """All words in the source, and the names of test files."""
    files = [
        path
        for name in SOURCE_DIRECTORIES
        for path in (PROJECT / name).rglob("*")
        if path.is_file() and path.suffix in SOURCE_SUFFIXES
    ]
    files += [PROJECT / "justfile", PROJECT / "pyproject.toml", PROJECT / "docs/reference/openapi.yaml"]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text(errors="replace"))}
    tests = [*(PROJECT / "tests").rglob("*"), *(PROJECT / "bench" / "tests").rglob("*")]
    return words | {path.stem for path in (*files, *tests)} | {path.parent.name for path in files}


def test_identifiers_in_code_spans_exist_in_the_source() -> None:
    known = source_words() | NOT_OURS

    def unknown(text: str) -> set[str]:
        named = {
            word
            for span in code_spans(text)
            for word in re.findall(rf"(?<![\w$:])({SNAKE_CASE}|{CAMEL_CASE})(?![\w-])", span)
        }
        return named - known

    assert problems_by_page(unknown) == {}


def test_metrics_named_in_docs_exist() -> None:
    known = {metric.name for metric in METRICS}

    def unknown(text: str) -> set[str]:
        named = re.findall(r"(?<![\w:/.-])headgate_[a-z0-9_]+_(?:total|seconds|ratio|bytes)(?:_bucket)?\b", text)
        return {name for name in named if name.removesuffix("_bucket") not in known}

    assert problems_by_page(unknown) == {}


def test_metric_labels_named_in_docs_exist() -> None:
    labels = {metric.name: {*metric.labels, "instance", "le", "job"} for metric in METRICS}

    def unknown(text: str) -> list[tuple[str, str]]:
        return [
            (metric, label)
            for metric, selector in re.findall(r"\b(headgate_[a-z0-9_]+)\{([^}]*)\}", text)
            for label in re.findall(r"(\w+)(?==|!=|,|$)", selector)
            if label not in labels.get(metric.removesuffix("_bucket"), {label})
        ]

    assert problems_by_page(unknown) == {}


def test_outcomes_used_in_queries_exist() -> None:
    def unknown(text: str) -> set[str]:
        named = set(re.findall(r"--outcome ([a-z_]+)|outcome=\"([a-z_]+)\"", text))
        return {first or second for first, second in named} - {*Outcome, "rejected", "failed"}

    assert problems_by_page(unknown) == {}


def test_alerts_named_in_docs_exist() -> None:
    alerts = {alert.name for _, group in alert_groups(PROMISES, duration_format()) for alert in group}

    assert problems_by_page(lambda text: set(re.findall(r"`(Headgate[A-Z]\w+)`", text)) - alerts) == {}


@pytest.mark.parametrize(
    ("page", "heading", "values"),
    [
        ("concepts/cost.md", "cause", BillCause),
        ("guides/load-testing.md", "result", LoadTestOutcome),
        ("guides/simulation.md", "result", RequestResult),
    ],
)
def test_table_lists_every_value_of_the_enumeration(page: str, heading: str, values: type[StrEnum]) -> None:
    text = (PROJECT / "docs" / page).read_text()
    [rows] = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert set(re.findall(r"^\| `(\w+)`", rows, re.MULTILINE)) == {*values}


def test_ledger_page_lists_only_existing_tables() -> None:
    migrations = "".join(path.read_text() for path in (PROJECT / "src/headgate/ledger/migrations").glob("*.sql"))
    named = {
        table
        for page, text in PAGES.items()
        if Path(page).name in {"backup.md", "budgets.md", "ledger.md"}
        for span in code_spans(text)
        for table in re.findall(r"^headgate\.([a-z_]+)$|from headgate\.([a-z_]+)", span)
    }
    tables = {first or second for first, second in named} - {"yaml"}
    assert tables - set(re.findall(r"create table headgate\.([a-z_]+)", migrations, re.IGNORECASE)) == set()


def test_tracing_page_lists_every_span_attribute() -> None:
    sources = "".join(path.read_text() for path in (PROJECT / "src/headgate/telemetry/traces").glob("*.py"))
    page = (PROJECT / "docs/guides/tracing.md").read_text()
    assert set(re.findall(r"`(headgate\.[a-z_]+)`", page)) == set(re.findall(r'"(headgate\.[a-z_]+)"', sources))


def admin_routes() -> dict[str, tuple[str, set[str]]]:
    """Permission and body fields for each path in the admin API."""
    routes: dict[str, tuple[str, set[str]]] = {}
    for module in (api, budgets, cell, cost, rollouts, tenants, traffic, trials):
        source = Path(str(module.__file__)).read_text()
        pattern = rf'b"{ADMIN_API.decode()}([a-z/-]+)": AdminRoute\((\w+),'
        for path, body in re.findall(pattern, source):
            info = inspect.type_info(getattr(module, body))
            assert isinstance(info, inspect.StructType)
            routes[path] = (API_PERMISSIONS[ADMIN_API + path.encode()].value, set(struct_fields(info)))
    return routes


def documented_routes() -> Iterator[tuple[str, str, str]]:
    """Path, permission and body in each row of the admin API tables."""
    page = (PROJECT / "docs/guides/tenants-and-keys.md").read_text()
    for paths, permission, body in re.findall(r"^\| (`[a-z]+/.+?) \| `(\w+)` \| (.+) \|$", page, re.MULTILINE):
        for path in re.findall(r"`(.+?)`", paths):
            yield path, permission, body
    page = (PROJECT / "docs/concepts/cost.md").read_text()
    for path, body in re.findall(r"^\| `/admin/v1/(cost/[a-z]+)` \| (.+) \|$", page, re.MULTILINE):
        yield path, "cost", body


def test_pages_list_every_admin_api_path_with_its_permission() -> None:
    documented = {path: permission for path, permission, _ in documented_routes()}
    assert documented == {path: permission for path, (permission, _) in admin_routes().items()}


def test_pages_list_the_admin_api_body_fields() -> None:
    routes = admin_routes()
    values = {"day", "month", "hard", "soft", "drain", "pin", "scale", "throttle"}
    for path, _, body in documented_routes():
        fields_named = set(re.findall(r"`(\w+)`", body))
        known = routes[path][1]
        if "as above" not in body:
            assert known <= fields_named, path
        assert fields_named - values <= known, path


def test_settings_in_yaml_examples_exist() -> None:
    top_level = set(fields(ConfigFile))

    def unknown(text: str) -> list[str]:
        return [
            setting
            for block in YAML_BLOCK.findall(text)
            if isinstance(document := yaml.safe_load(block), dict)
            and set(document) <= top_level
            and "traffic" not in document
            for setting in unknown_settings(document, inspect.type_info(ConfigFile), "")
        ]

    assert problems_by_page(unknown) == {}


def test_dotted_settings_named_in_docs_exist() -> None:
    """A path such as `retry.attempts_max` or `pools.NAME.scaling.calendar`."""
    top_level = fields(ConfigFile)

    def unknown(text: str) -> set[str]:
        named = {
            span.partition(":")[0]
            for span in code_spans(text)
            if re.match(r"[a-z_]+(\.[A-Za-z_]+)+(?:$|: )", span) and span.partition(".")[0] in top_level
        }
        return {path for path in named if not setting_exists(path)}

    assert problems_by_page(unknown) == {}


def fields(section: type[Section]) -> Mapping[str, inspect.Type]:
    info = inspect.type_info(section)
    assert isinstance(info, inspect.StructType)
    return struct_fields(info)


def struct_fields(info: inspect.StructType) -> dict[str, inspect.Type]:
    return {field.encode_name: field.type for field in info.fields}


def alternatives(info: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(info, inspect.Metadata):
        yield from alternatives(info.type)
    elif isinstance(info, inspect.UnionType):
        for each in info.types:
            yield from alternatives(each)
    else:
        yield info


def unknown_settings(value: object, info: inspect.Type, path: str) -> Iterator[str]:
    for each in alternatives(info):
        match value, each:
            case dict(), inspect.StructType():
                known = struct_fields(each)
                for name, inner in value.items():
                    if name not in known:
                        yield f"{path}{name}"
                    else:
                        yield from unknown_settings(inner, known[name], f"{path}{name}.")
            case dict(), inspect.DictType(value_type=inner_type):
                for name, inner in value.items():
                    yield from unknown_settings(inner, inner_type, f"{path}{name}.")
            case list(), inspect.ListType(item_type=item_type):
                for inner in value:
                    yield from unknown_settings(inner, item_type, path)
            case _:
                pass


def setting_exists(path: str) -> bool:
    places: list[inspect.Type] = [inspect.type_info(ConfigFile)]
    for name in path.split("."):
        places = [inner for place in places for inner in settings_inside(place, name)]
    return bool(places)


def settings_inside(info: inspect.Type, name: str) -> Iterator[inspect.Type]:
    for each in alternatives(info):
        match each:
            case inspect.ListType(item_type=item_type):
                yield from settings_inside(item_type, name)
            case inspect.DictType(value_type=value_type):
                yield value_type
            case inspect.StructType():
                yield from (inner for known, inner in struct_fields(each).items() if known == name)
            case _:
                pass
