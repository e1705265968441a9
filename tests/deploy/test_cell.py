"""The cell overlay produces valid manifests from those of a single gateway."""

import jsonschema
import kubernetes_validate
import pytest
import yaml

from headgate.config.load import parse
from headgate.config.settings import Settings
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES
from tests.deploy.manifests import gateway_config, the
from tests.deploy.overlays import CELL, layer, patched
from tests.deploy.schemas import A_LAYER, SCALED_BY_PROMETHEUS

ENVIRONMENT = {
    "HEADGATE_KEY_SECRET": "x" * 43,
    "ENGINE_KEY": "y",
    "HEADGATE_STORE": "rediss://:secret@cache.default.svc:6379",
    "HEADGATE_MEMBER": "headgate-7c9d6f5b48-x2x7k",
}
VERSIONS = ("1.29", "1.33", kubernetes_validate.latest_version())


def settings() -> Settings:
    text = (CELL / "headgate.yaml").read_text()
    return parse(text, "headgate.yaml", ENVIRONMENT, engines=DIALECTS, profiles=PROFILES)


def test_overlay_lists_every_file() -> None:
    named = [each["path"] for each in layer(CELL)["patches"]]
    named += [file for each in layer(CELL)["configMapGenerator"] for file in each["files"]]
    base, *added = layer(CELL)["resources"]

    assert list(jsonschema.Draft202012Validator(A_LAYER).iter_errors(layer(CELL))) == []
    assert {path.name for path in CELL.iterdir()} == {*named, *added, "kustomization.yaml"}
    assert (CELL / base / "kustomization.yaml").is_file()


@pytest.mark.parametrize("version", VERSIONS)
def test_added_manifest_matches_its_schema(version: str) -> None:
    tree = yaml.safe_load((CELL / "networkpolicy.yaml").read_text())

    assert kubernetes_validate.validate(tree, version, strict=True).startswith(version[:4])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", ["gateway.yaml", "poddisruptionbudget.yaml"])
def test_patched_manifest_matches_its_schema(file: str, version: str) -> None:
    assert kubernetes_validate.validate(patched(CELL, file).tree, version, strict=True).startswith(version[:4])


def test_replicas_match_the_configured_members_and_one_may_be_unavailable() -> None:
    cell, gateway = settings().cell, patched(CELL, "gateway.yaml")

    assert cell is not None
    assert gateway.spec["replicas"] == cell.member_count > 1
    assert gateway.spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert patched(CELL, "poddisruptionbudget.yaml").spec == {
        "maxUnavailable": 1,
        "selector": the("PodDisruptionBudget", "headgate").spec["selector"],
    }


def test_member_name_is_the_pod_name() -> None:
    gateway = patched(CELL, "gateway.yaml")

    assert gateway.container["env"] == [
        {"name": "HEADGATE_MEMBER", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    ]
    assert gateway.container["image"] == the("Deployment", "headgate").container["image"]
    assert "${HEADGATE_MEMBER}" in (CELL / "headgate.yaml").read_text()


def test_configuration_adds_a_cell_and_removes_the_scaler() -> None:
    config = yaml.safe_load((CELL / "headgate.yaml").read_text())
    alone = gateway_config()
    del alone["scaler_listen"]

    assert config.pop("cell").keys() == {"store", "member_name", "member_count"}
    assert config == alone
    assert settings().warnings == ()


def test_keda_uses_the_highest_reported_endpoints_desired() -> None:
    scaled = patched(CELL, "scaledobject.yaml")
    [trigger], [pool] = scaled.spec["triggers"], settings().pools

    assert list(jsonschema.Draft202012Validator(SCALED_BY_PROMETHEUS).iter_errors(trigger)) == []
    assert trigger["metadata"]["query"] == f'max(headgate_endpoints_desired{{pool="{pool.name}"}})'
    assert scaled.spec["maxReplicaCount"] == the("ScaledObject", "engines").spec["maxReplicaCount"]
