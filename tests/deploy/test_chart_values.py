"""The values of the Helm chart, their schema and their documentation match, and Helm rejects invalid values."""

import json
from collections.abc import Iterator

import jsonschema
import pytest
import yaml

from tests.deploy.charts import CHART, VALUE_SETS, ChartError, helm, rendered
from tests.deploy.manifests import Tree
from tests.deploy.test_manifests import RELEASE

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
SET_BY_HELM = {"global"}


def sections(schema: Tree, path: str = "") -> Iterator[tuple[str, Tree]]:
    """All sections of the values that list their settings."""
    if "properties" in schema:
        yield path, schema
        for name, each in schema["properties"].items():
            yield from sections(each, f"{path}.{name}" if path else name)


def test_chart_and_image_have_the_version_that_is_being_prepared() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (RELEASE, RELEASE)


def test_schema_is_valid_and_rejects_unknown_settings_in_every_section() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)

    assert [path for path, section in sections(SCHEMA) if section.get("additionalProperties") is not False] == []


def test_values_file_contains_every_setting_of_the_schema() -> None:
    for path, section in sections(SCHEMA):
        values = DEFAULTS
        for name in filter(None, path.split(".")):
            values = values[name]
        expected = set(section["properties"]) - SET_BY_HELM
        # Kubernetes defines the settings of `resources`, of which the defaults use only some.
        assert values.keys() <= expected if path == "resources" else values.keys() == expected, path


def test_every_setting_has_a_comment_above_it_or_above_its_group() -> None:
    text = (CHART / "values.yaml").read_text().split("\n\n", 1)[1]
    undocumented = [group.splitlines()[0] for group in text.split("\n\n") if "#" not in group]

    # Kubernetes defines these values.
    assert [line.partition(":")[0] for line in undocumented] == ["podLabels"]


@pytest.mark.parametrize("name", VALUE_SETS)
def test_value_set_matches_the_schema(name: str) -> None:
    values = yaml.safe_load(VALUE_SETS[name].read_text())

    assert list(jsonschema.Draft7Validator(SCHEMA).iter_errors(values)) == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("replicas=3", "Additional property replicas is not allowed"),
        ("image.repo=headgate", "Additional property repo is not allowed"),
        ("keda.targets.chat.deployment=engines", "Additional property deployment is not allowed"),
        ("keda.enabled=1", "Invalid type. Expected: boolean, given: integer"),
        ("service.port=http", "Invalid type. Expected: integer, given: string"),
        ("preStopSeconds=-1", "Must be greater than or equal to 0"),
        ("config=listen", "Invalid type. Expected: object, given: string"),
        ("spread.zone=Always", "spread.zone must be one of the following"),
        ("image.digest=latest", "image.digest: Does not match pattern"),
        ("httpRoute.timeouts.request=forever", "httpRoute.timeouts.request: Does not match pattern"),
        ("secret.values.ENGINE-KEY=x", "ENGINE-KEY"),
    ],
)
def test_helm_rejects_values_that_do_not_match_the_schema(setting: str, message: str) -> None:
    with pytest.raises(ChartError, match=r"values don't meet the specifications of the schema") as raised:
        rendered("minimal", "--set", setting)

    assert message in str(raised.value)


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("minimal", ["config.pools=null"], "the configuration has no pools or no models"),
        ("minimal", ["config.listen=127.0.0.1:8080"], "listen on 127.0.0.1:8080; set it to 0.0.0.0:8080 or"),
        ("minimal", ["config.admin_listen=0.0.0.0:9000"], "admin_listen on 0.0.0.0:9000; set it to 0.0.0.0:9090"),
        ("minimal", ["config.scaler_listen=0.0.0.0:9091"], "remove it or set keda.enabled"),
        ("minimal", ["config.drain_grace=1h30m"], "drain_grace is 1h30m; write it as a whole number of seconds"),
        ("minimal", ["configFile=x"], "set only one of config and configFile"),
        ("minimal", ["secret.existing=headgate"], "set only one of secret.existing and secret.values"),
        ("minimal", ["serviceAccount.create=false"], "serviceAccount.name is required"),
        ("minimal", ["httpRoute.enabled=true"], "httpRoute.enabled needs httpRoute.parentRefs"),
        ("minimal", ["keda.enabled=true"], "keda.enabled needs keda.targets"),
        ("minimal", ["keda.enabled=true", "keda.targets.chat.name=engines"], "which has no scaling.endpoints_max"),
        ("cell", ["keda.prometheusAddress="], "keda.prometheusAddress is required for a cell"),
        ("cell", ["config.cell.member_count=0"], "a cell without member_count"),
        ("cell", ["secret.existing="], "set secret.existing to a Secret with HEADGATE_STORE"),
        ("operators", ["keda.targets.embed.name=engines"], "names the pool embed, which is not in the configuration"),
        ("route", ["configFile=pools: ["], "configFile is not valid YAML"),
        ("route", ["tls.secretName=headgate-tls"], "listen_tls in the configuration and tls.secretName require each"),
        ("route", ["keda.enabled=true"], "scaler_listen on a loopback address; set it to 0.0.0.0:9091"),
        (
            "tls",
            ["httpRoute.enabled=true", "httpRoute.parentRefs[0].name=public"],
            "httpRoute.backendTLS.caConfigMap is required with TLS",
        ),
    ],
)
def test_chart_rejects_inconsistent_values_with_the_next_step(name: str, settings: list[str], message: str) -> None:
    with pytest.raises(ChartError) as raised:
        rendered(name, *(argument for setting in settings for argument in ("--set", setting)))

    assert message in str(raised.value)


@pytest.mark.process
@pytest.mark.parametrize("name", VALUE_SETS)
def test_helm_lint_accepts_the_chart(name: str) -> None:
    printed = helm("lint", CHART, "--strict", "--values", VALUE_SETS[name])

    assert "1 chart(s) linted, 0 chart(s) failed" in printed
    assert "WARNING" not in printed
