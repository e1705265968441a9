"""The cell overlay produces valid manifests from those of a single gateway."""

import copy
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from headgate.config.load import parse
from headgate.config.settings import Settings
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES
from tests.deploy.manifests import KUBERNETES, Manifest, Tree, gateway_config, the
from tests.deploy.schemas import A_LAYER, SCALED_BY_PROMETHEUS

CELL = KUBERNETES / "cell"
ENVIRONMENT = {
    "HEADGATE_KEY_SECRET": "x" * 43,
    "ENGINE_KEY": "y",
    "HEADGATE_STORE": "rediss://:secret@cache.default.svc:6379",
    "HEADGATE_MEMBER": "headgate-7c9d6f5b48-x2x7k",
}
VERSIONS = ("1.29", "1.33", kubernetes_validate.latest_version())


def layer() -> Tree:
    return yaml.safe_load((CELL / "kustomization.yaml").read_text())


def patched(file: str) -> Manifest:
    patch = yaml.safe_load((CELL / file).read_text())
    base = the(patch["kind"], patch["metadata"]["name"])
    return Manifest(file, merged(copy.deepcopy(base.tree), patch))


def merged(base: Any, patch: Any) -> Any:
    """Merge as Kustomize does: null removes a key, containers are matched by name, other lists are replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        together = {key: merged(base.get(key), value) for key, value in patch.items() if value is not None}
        return {key: value for key, value in base.items() if key not in patch} | together
    if isinstance(base, list) and isinstance(patch, list) and all("name" in each and "image" in each for each in base):
        by_name = {each["name"]: each for each in patch}
        return [merged(each, by_name.get(each["name"], {})) for each in base]
    return patch


def settings() -> Settings:
    text = (CELL / "headgate.yaml").read_text()
    return parse(text, "headgate.yaml", ENVIRONMENT, engines=DIALECTS, profiles=PROFILES)


def test_overlay_lists_every_file() -> None:
    named = [each["path"] for each in layer()["patches"]]
    named += [file for each in layer()["configMapGenerator"] for file in each["files"]]
    base, *added = layer()["resources"]

    assert list(jsonschema.Draft202012Validator(A_LAYER).iter_errors(layer())) == []
    assert {path.name for path in CELL.iterdir()} == {*named, *added, "kustomization.yaml"}
    assert (CELL / base / "kustomization.yaml").is_file()


@pytest.mark.parametrize("version", VERSIONS)
def test_added_manifest_matches_its_schema(version: str) -> None:
    tree = yaml.safe_load((CELL / "networkpolicy.yaml").read_text())

    assert kubernetes_validate.validate(tree, version, strict=True).startswith(version[:4])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", ["gateway.yaml", "poddisruptionbudget.yaml"])
def test_patched_manifest_matches_its_schema(file: str, version: str) -> None:
    assert kubernetes_validate.validate(patched(file).tree, version, strict=True).startswith(version[:4])


def test_replicas_match_the_configured_members_and_one_may_be_unavailable() -> None:
    cell, gateway = settings().cell, patched("gateway.yaml")

    assert cell is not None
    assert gateway.spec["replicas"] == cell.member_count > 1
    assert gateway.spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert patched("poddisruptionbudget.yaml").spec == {
        "maxUnavailable": 1,
        "selector": the("PodDisruptionBudget", "headgate").spec["selector"],
    }


def test_member_name_is_the_pod_name() -> None:
    gateway = patched("gateway.yaml")

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
    scaled = patched("scaledobject.yaml")
    [trigger], [pool] = scaled.spec["triggers"], settings().pools

    assert list(jsonschema.Draft202012Validator(SCALED_BY_PROMETHEUS).iter_errors(trigger)) == []
    assert trigger["metadata"]["query"] == f'max(headgate_endpoints_desired{{pool="{pool.name}"}})'
    assert scaled.spec["maxReplicaCount"] == the("ScaledObject", "engines").spec["maxReplicaCount"]
