"""Every value set of the Helm chart renders to valid objects, which match those in deploy/kubernetes."""

import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from headgate.cli.main import main
from headgate.config.load import parse
from headgate.config.settings import Settings
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES
from headgate.model.units import SECOND
from testing.certificates import Authority
from tests.deploy.charts import CHART, VALUE_SETS, Release, helm, rendered
from tests.deploy.manifests import Manifest, Tree, gateway_config, matches, the
from tests.deploy.overlays import CELL, TLS, patched
from tests.deploy.schemas import BACKEND_TLS_POLICY, HTTP_ROUTE, SCALED_BY_PROMETHEUS, SCALED_OBJECT, SERVICE_MONITOR
from tests.deploy.test_manifests import RELEASE, VERSIONS
from tests.house.small_tree import PROJECT

pytestmark = pytest.mark.process

SCHEMAS = {
    "ScaledObject": SCALED_OBJECT,
    "ServiceMonitor": SERVICE_MONITOR,
    "HTTPRoute": HTTP_ROUTE,
    "BackendTLSPolicy": BACKEND_TLS_POLICY,
}
SECRET = {
    "HEADGATE_KEY_SECRET": "x" * 43,
    "ENGINE_KEY": "y",
    "HEADGATE_STORE": "rediss://:secret@cache.default.svc:6379",
}
ENVIRONMENT = SECRET | {"HEADGATE_MEMBER": "headgate-7c9d6f5b48-x2x7k"}
ALL = ("ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount")
WITH_EVERYTHING = (
    *("--set", "httpRoute.enabled=true", "--set", "httpRoute.parentRefs[0].name=public"),
    *("--set", "httpRoute.backendTLS.caConfigMap=authority", "--set", "serviceMonitor.enabled=true"),
)
"""Options that add all optional objects to the value set `tls`."""


def configuration(release: Release, folder: Path) -> Path:
    """The configuration file, with the mounted directories in `folder`."""
    text = release.config
    for directory in ("headgate-secrets", "headgate-tls"):
        text = text.replace(f"/etc/{directory}", str(folder / directory))
    (folder / "headgate-secrets").mkdir()
    for name, value in SECRET.items():
        (folder / "headgate-secrets" / name).write_text(value)
    if "headgate-tls" in text:
        authority = Authority(folder / "authority")
        certificate, key = authority.issue()
        (folder / "headgate-tls").mkdir()
        for name, path in (("tls.crt", certificate), ("tls.key", key), ("ca.crt", authority.file)):
            (folder / "headgate-tls" / name).write_text(Path(path).read_text())
    file = folder / "headgate.yaml"
    file.write_text(text)
    return file


def settings(release: Release, folder: Path) -> Settings:
    file = configuration(release, folder)
    return parse(file.read_text(), str(file), ENVIRONMENT, engines=DIALECTS, profiles=PROFILES)


def without_release(value: Any) -> Any:
    """Remove the labels that are only in charts, to compare an object with one in deploy/kubernetes."""
    if isinstance(value, dict):
        return {key: without_release(each) for key, each in value.items() if key != "app.kubernetes.io/instance"}
    return [without_release(each) for each in value] if isinstance(value, list) else value


# Objects of every value set


def test_chart_has_five_value_sets_with_different_features() -> None:
    kinds = {name: {each.kind for each in rendered(name).manifests} - set(ALL) for name in VALUE_SETS}

    assert kinds == {
        "minimal": {"Secret"},
        "tls": set(),
        "cell": {"ScaledObject"},
        "operators": {"ScaledObject", "ServiceMonitor"},
        "route": {"HTTPRoute"},
    }


@pytest.mark.parametrize(("name", "options"), [*((name, ()) for name in VALUE_SETS), ("tls", WITH_EVERYTHING)])
def test_every_object_matches_its_schema(name: str, options: tuple[str, ...]) -> None:
    for manifest in rendered(name, *options).manifests:
        if schema := SCHEMAS.get(manifest.kind):
            checked = manifest.tree
            if name == "cell":
                [trigger] = checked["spec"]["triggers"]
                assert list(jsonschema.Draft202012Validator(SCALED_BY_PROMETHEUS).iter_errors(trigger)) == []
                checked = {**checked, "spec": {**checked["spec"], "triggers": the_triggers()}}
            assert list(jsonschema.Draft202012Validator(schema).iter_errors(checked)) == [], str(manifest)
            continue
        for version in VERSIONS:
            assert kubernetes_validate.validate(manifest.tree, version, strict=True).startswith(version[:4])


def the_triggers() -> list[Tree]:
    return the("ScaledObject", "engines").spec["triggers"]


@pytest.mark.parametrize("name", VALUE_SETS)
def test_objects_have_the_labels_and_the_namespace_of_the_release(name: str) -> None:
    for manifest in rendered(name, name="blue").manifests:
        metadata = manifest.tree["metadata"]

        assert metadata["namespace"] == "headgate"
        assert manifest.name.startswith("blue-headgate")
        assert (
            metadata["labels"].items()
            >= {
                "app.kubernetes.io/name": "headgate",
                "app.kubernetes.io/instance": "blue",
                "app.kubernetes.io/version": RELEASE,
                "app.kubernetes.io/managed-by": "Helm",
                "helm.sh/chart": f"headgate-{RELEASE}",
            }.items()
        )


@pytest.mark.parametrize("name", VALUE_SETS)
def test_objects_refer_to_each_other(name: str) -> None:
    release = rendered(name, name="blue")
    gateway = release.the("Deployment", "blue-headgate")
    services = release.all_of("Service")
    selectors = [each.spec["selector"] for each in services]
    selectors += [each.spec["selector"]["matchLabels"] for each in release.all_of("PodDisruptionBudget")]
    selectors += [each.spec["podSelector"]["matchLabels"] for each in release.all_of("NetworkPolicy")]
    opened = {
        port["port"]
        for each in release.all_of("NetworkPolicy")
        for rule in each.spec["ingress"]
        for port in rule["ports"]
    }
    volumes = {each["name"]: each for each in gateway.pod["volumes"]}

    assert [each for each in selectors if each != gateway.spec["selector"]["matchLabels"]] == []
    assert matches(gateway.spec["selector"]["matchLabels"], gateway.pod_labels)
    assert [gateway.port(port["targetPort"]) for each in services for port in each.spec["ports"]]
    assert opened == {each["name"] for each in gateway.container["ports"]}
    assert gateway.pod["serviceAccountName"] == release.the("ServiceAccount", "blue-headgate").name
    assert volumes["config"]["configMap"]["name"] == release.the("ConfigMap", "blue-headgate").name
    assert {each["name"] for each in gateway.container["volumeMounts"]} == set(volumes)
    for route in release.all_of("HTTPRoute"):
        [rule] = route.spec["rules"]
        service = release.the("Service", "blue-headgate")
        assert rule["backendRefs"] == [{"name": service.name, "port": service.spec["ports"][0]["port"]}]
    for monitor in release.all_of("ServiceMonitor"):
        selector = monitor.spec["selector"]["matchLabels"]
        [admin] = [each for each in services if matches(selector, each.tree["metadata"]["labels"])]
        assert [each["name"] for each in admin.spec["ports"]] == [monitor.spec["endpoints"][0]["port"]]


# The pod


@pytest.mark.parametrize("name", VALUE_SETS)
def test_pod_has_the_security_context_and_probes_of_the_manifests(name: str) -> None:
    gateway, expected = rendered(name).the("Deployment"), the("Deployment", "headgate")
    in_container = (
        "args",
        "securityContext",
        "startupProbe",
        "livenessProbe",
        "readinessProbe",
        "lifecycle",
        "resources",
    )

    assert gateway.pod["securityContext"] == expected.pod["securityContext"]
    assert gateway.pod["automountServiceAccountToken"] is False
    assert {key: gateway.container[key] for key in in_container} == {
        key: expected.container[key] for key in in_container
    }
    assert gateway.spec["strategy"] == expected.spec["strategy"]


@pytest.mark.parametrize("name", VALUE_SETS)
def test_grace_period_covers_the_delay_and_the_drain(name: str, tmp_path: Path) -> None:
    release = rendered(name, "--set", "preStopSeconds=20")
    gateway = release.the("Deployment")
    needed = 20 + settings(release, tmp_path).drain_grace_ns // SECOND

    assert gateway.container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "20"]
    assert gateway.pod["terminationGracePeriodSeconds"] == needed + 15


@pytest.mark.parametrize(
    ("name", "expected", "options"),
    [
        ("operators", the("Deployment", "headgate"), ()),
        ("cell", patched(CELL, "gateway.yaml"), ()),
        ("tls", patched(TLS, "gateway.yaml"), ("--set", "spread.zone=ScheduleAnyway")),
    ],
)
def test_deployment_equals_that_of_the_manifests(name: str, expected: Manifest, options: tuple[str, ...]) -> None:
    found, wanted = without_release(rendered(name, *options).the("Deployment").spec), without_release(expected.spec)
    [container], [wanted_container] = found["template"]["spec"]["containers"], wanted["template"]["spec"]["containers"]

    assert container.pop("imagePullPolicy") == "IfNotPresent"
    if name != "operators":
        # The overlays do not remove the port that only a gateway with a scaler listens on.
        wanted_container["ports"] = [each for each in wanted_container["ports"] if each["name"] != "scaler"]
    assert found == wanted


def test_image_is_selected_by_digest_before_tag() -> None:
    digest = f"sha256:{'0' * 64}"
    options = ("--set", "image.repository=registry.example.com/headgate", "--set", "image.tag=main")

    assert rendered("tls").the("Deployment").container["image"] == f"headgate:{RELEASE}"
    assert rendered("tls", *options).the("Deployment").container["image"] == "registry.example.com/headgate:main"
    with_digest = rendered("tls", *options, "--set", f"image.digest={digest}").the("Deployment")
    assert with_digest.container["image"] == f"registry.example.com/headgate@{digest}"


def test_optional_pod_settings_are_applied(tmp_path: Path) -> None:
    values: Tree = {
        "imagePullSecrets": [{"name": "registry"}],
        "podLabels": {"team": "inference"},
        "podAnnotations": {"example.com/owner": "inference"},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraVolumes": [{"name": "spool", "emptyDir": {"sizeLimit": "1Gi"}}],
        "extraVolumeMounts": [{"name": "spool", "mountPath": "/spool"}],
        "spread": {"zone": "", "node": ""},
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "serviceAccount": {"create": False, "name": "shared"},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    release = rendered("cell", "--values", str(tmp_path / "values.yaml"))
    gateway = release.the("Deployment")

    assert kubernetes_validate.validate(gateway.tree, VERSIONS[-1], strict=True)
    unchanged = ("imagePullSecrets", "nodeSelector", "tolerations", "affinity", "priorityClassName")
    assert {key: gateway.pod[key] for key in unchanged} == {key: values[key] for key in unchanged}
    assert gateway.pod_labels["team"] == "inference"
    assert gateway.spec["template"]["metadata"]["annotations"] == values["podAnnotations"]
    assert [each["name"] for each in gateway.container["env"]] == ["HEADGATE_MEMBER", "HTTPS_PROXY"]
    assert gateway.pod["volumes"][-1:] == values["extraVolumes"]
    assert gateway.container["volumeMounts"][-1:] == values["extraVolumeMounts"]
    assert "topologySpreadConstraints" not in gateway.pod
    assert gateway.pod["serviceAccountName"] == "shared"
    assert {each.kind for each in release.manifests} == {"ConfigMap", "Deployment", "ScaledObject", "Service"}


# The configuration


@pytest.mark.parametrize("name", VALUE_SETS)
def test_check_accepts_the_configuration(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = configuration(rendered(name), tmp_path)
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    code = main(["check", "--config", str(file)])

    assert (code, capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize("name", VALUE_SETS)
def test_configuration_fits_the_pod(name: str, tmp_path: Path) -> None:
    release = rendered(name)
    gateway, found = release.the("Deployment"), settings(release, tmp_path)
    config = yaml.safe_load(release.config)
    listeners = {"listen": "http", "admin_listen": "admin", "scaler_listen": "scaler"}
    from_secret = set(re.findall(r"\$\{([A-Z_]+)\}", release.config)) - {"HEADGATE_MEMBER"}

    assert found.warnings == ()
    assert {port: config[key] for key, port in listeners.items() if key in config} == {
        each["name"]: f"0.0.0.0:{each['containerPort']}" for each in gateway.container["ports"]
    }
    assert gateway.spec["replicas"] == (found.cell.member_count if found.cell else 1)
    assert bool(from_secret) == ("envFrom" in gateway.container)
    for secret in release.all_of("Secret"):
        assert secret.tree["stringData"].keys() == from_secret


def test_configurations_equal_those_of_the_manifests() -> None:
    tls = yaml.safe_load((TLS / "headgate.yaml").read_text())
    del tls["scaler_listen"], tls["pools"]["chat"]["scaling"]

    assert yaml.safe_load(rendered("operators").config) == gateway_config()
    assert yaml.safe_load(rendered("cell").config) == yaml.safe_load((CELL / "headgate.yaml").read_text())
    assert yaml.safe_load(rendered("tls").config) == tls


def test_configuration_file_is_not_changed(tmp_path: Path) -> None:
    text = f"\n\n# A comment.\n{yaml.safe_dump(gateway_config())}\n# The end.\n"
    (tmp_path / "headgate.yaml").write_text(text)
    options = ("--set-file", f"configFile={tmp_path / 'headgate.yaml'}", "--set", "config=null")

    assert rendered("operators", *options).config.strip() == text.strip()


def test_large_numbers_stay_integers() -> None:
    options = (
        "--set",
        "config.limits.total_body_bytes_max=10737418240",
        "--set",
        "config.limits.connections_open_max=1000000",
    )
    config = yaml.safe_load(rendered("tls", *options).config)

    assert config["limits"] == {"total_body_bytes_max": 10737418240, "connections_open_max": 1000000}


def test_settings_of_the_user_take_precedence_over_those_of_the_chart() -> None:
    options = (
        "--set",
        "config.drain_grace=5m",
        "--set",
        "config.listen=[::]:8080",
        "--set",
        "config.key_secret=${OTHER}",
    )
    release = rendered("operators", *options)
    config = yaml.safe_load(release.config)

    assert (config["drain_grace"], config["listen"], config["key_secret"]) == ("5m", "[::]:8080", "${OTHER}")
    assert release.the("Deployment").pod["terminationGracePeriodSeconds"] == 10 + 300 + 15


def test_gateways_of_a_cell_verify_each_other_with_tls() -> None:
    config = yaml.safe_load(rendered("cell", "--set", "tls.secretName=headgate-tls").config)

    assert config["listen_tls"].keys() == {"certificate", "key"}
    assert config["admin_listen_tls"]["ca"] == "/etc/headgate-tls/ca.crt"
    assert config["admin_listen_tls"]["server_name"] == "headgate.headgate.svc.cluster.local"


def test_configuration_change_starts_new_pods_only_if_requested() -> None:
    def pod(*options: str) -> Tree:
        return rendered("operators", *options).the("Deployment").spec["template"]

    change, restart = ("--set", "config.models.other=chat"), ("--set", "restartOnConfigChange=true")

    assert rendered("operators", *change).config != rendered("operators").config
    assert pod(*change) == pod()
    assert pod(*change, *restart) != pod(*restart)


def test_change_of_a_secret_in_the_values_starts_new_pods_unless_it_is_mounted() -> None:
    def pod(*options: str) -> Tree:
        return rendered("minimal", *options).the("Deployment").spec["template"]

    change, mounted = ("--set", "secret.values.HEADGATE_KEY_SECRET=other"), ("--set", "secret.asFiles=true")

    assert pod(*change) != pod()
    assert pod(*change, *mounted) == pod(*mounted)


# Features


def test_scaled_objects_equal_those_of_the_manifests() -> None:
    for name, expected in (("operators", the("ScaledObject", "engines")), ("cell", patched(CELL, "scaledobject.yaml"))):
        scaled = rendered(name).the("ScaledObject", "headgate-chat")

        assert scaled.spec == expected.spec


def test_replica_limits_come_from_the_configuration() -> None:
    options = (
        "--set",
        "config.pools.chat.scaling.endpoints_min=0",
        "--set",
        "config.pools.chat.scaling.endpoints_max=40",
    )
    spec = rendered("operators", *options).the("ScaledObject", "headgate-chat").spec

    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 40)


def test_tolerance_is_turned_off_for_the_autoscaler_and_the_scaler() -> None:
    options = ("--set", "keda.disableTolerance=true", "--set", "keda.targets.chat.kind=LeaderWorkerSet")
    spec = rendered("operators", *options).the("ScaledObject", "headgate-chat").spec
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]

    assert {each["tolerance"] for each in behavior.values()} == {"0"}
    assert spec["triggers"][0]["metadata"]["tolerancePercent"] == "0"
    assert spec["scaleTargetRef"] == {"name": "engines", "kind": "LeaderWorkerSet"}
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "keda-hpa-headgate-chat"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "engines"},
            "maxReplicas": spec["maxReplicaCount"],
            "behavior": behavior,
        },
    }
    assert kubernetes_validate.validate(autoscaler, VERSIONS[-1], strict=True)


def test_services_monitors_and_budgets_equal_those_of_the_manifests() -> None:
    release = rendered("operators")

    for name in ("headgate", "headgate-admin", "headgate-scaler"):
        found = without_release(release.the("Service", name).spec)
        assert {"type": "ClusterIP", **the("Service", name).spec} == {"type": "ClusterIP", **found}
    assert release.the("ServiceMonitor").spec["endpoints"] == the("ServiceMonitor", "headgate").spec["endpoints"]
    assert release.the("ServiceMonitor").tree["metadata"]["labels"]["release"] == "prometheus"
    for found, expected in (
        (release, the("PodDisruptionBudget", "headgate")),
        (rendered("cell"), patched(CELL, "poddisruptionbudget.yaml")),
    ):
        assert without_release(found.the("PodDisruptionBudget").spec) == expected.spec


def test_prometheus_and_routes_use_tls_if_the_gateway_does() -> None:
    release = rendered("tls", *WITH_EVERYTHING)
    host = "headgate.headgate.svc.cluster.local"

    assert release.the("ServiceMonitor").spec["endpoints"] == patched(TLS, "servicemonitor.yaml").spec["endpoints"]
    assert release.the("Service").spec["ports"] == patched(TLS, "service.yaml").spec["ports"]
    assert release.the("BackendTLSPolicy").spec["validation"]["hostname"] == host
    assert release.the("BackendTLSPolicy").spec["targetRefs"][0]["name"] == release.the("Service").name


def test_network_policy_admits_only_the_listed_peers() -> None:
    def peers(name: str) -> dict[str, list[Tree | None]]:
        found: dict[str, list[Tree | None]] = {}
        for rule in rendered(name).the("NetworkPolicy").spec["ingress"]:
            [port] = rule["ports"]
            found.setdefault(port["port"], []).extend(rule.get("from", [None]))
        return found

    def namespace(name: str) -> Tree:
        return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}

    members = {"podSelector": {"matchLabels": rendered("cell").the("Deployment").spec["selector"]["matchLabels"]}}

    assert peers("operators") == {
        "http": [namespace("applications")],
        "admin": [namespace("monitoring")],
        "scaler": [namespace("keda")],
    }
    assert peers("cell") == {"http": [None], "admin": [namespace("monitoring"), members]}


def test_route_never_cuts_a_silent_stream() -> None:
    [rule] = rendered("route").the("HTTPRoute").spec["rules"]
    served = [match["path"]["value"] for match in rule["matches"]]

    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    assert served == ["/v1", "/v2", "/errors"]
    without = ("--set", "httpRoute.timeouts.request=", "--set", "httpRoute.timeouts.backendRequest=")
    assert "timeouts" not in rendered("route", *without).the("HTTPRoute").spec["rules"][0]


def test_notes_name_the_address_for_callers(tmp_path: Path) -> None:
    # Helm prints the notes only after an installation, so a copy of the chart includes them in an object.
    chart = shutil.copytree(CHART, tmp_path / "headgate")
    (chart / "templates" / "shown.yaml").write_text('{notes: {{ include "headgate/templates/NOTES.txt" . | toJson }}}')

    def notes(name: str, *options: str) -> str:
        shown = ("--namespace", "headgate", "--show-only", "templates/shown.yaml", "--values", VALUE_SETS[name])
        return yaml.safe_load(helm("template", "headgate", chart, *shown, *options))["notes"]

    host = "headgate.headgate.svc.cluster.local"

    assert f"  http://{host}/v1\n" in notes("minimal")
    assert f"  https://{host}/v1\n" in notes("tls")
    assert f"  https://{host}:8443/v1\n" in notes("tls", "--set", "service.port=8443")
    assert "installed with 3 gateway(s)" in notes("cell")
    assert "rollout restart" not in notes("tls")
    assert "After a change to the Secret headgate, restart" in notes("cell")


def test_guide_lists_the_settings_that_the_chart_adds() -> None:
    section = (PROJECT / "docs/guides/helm.md").read_text().split("### Configuration\n")[1].split("### ")[0]
    listed = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(.*?)`", row)
    }
    added: set[str] = set()
    for name in sorted(VALUE_SETS.keys() - {"route"}):
        given = settings_named(yaml.safe_load(VALUE_SETS[name].read_text())["config"])
        added |= settings_named(yaml.safe_load(rendered(name).config)) - given

    assert listed == added


def settings_named(config: Tree) -> set[str]:
    return {*config, *(f"cell.{name}" for name in config.get("cell", {}))}
