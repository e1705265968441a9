"""Kustomize overlays: directories in deploy/kubernetes that patch the manifests of a single gateway."""

import copy
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.manifests import KUBERNETES, Manifest, Tree, the

CELL, TLS = KUBERNETES / "cell", KUBERNETES / "tls"

_MERGE_KEYS = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath", "ports": "port"}
"""Lists whose items are matched by a key. Other lists are replaced."""


def layer(overlay: Path) -> Tree:
    return yaml.safe_load((overlay / "kustomization.yaml").read_text())


def patched(overlay: Path, file: str) -> Manifest:
    patch = yaml.safe_load((overlay / file).read_text())
    base = the(patch["kind"], patch["metadata"]["name"])
    return Manifest(file, merged(copy.deepcopy(base.tree), patch))


def merged(base: Any, patch: Any, field: str = "") -> Any:
    """Merge as Kustomize does: null removes a key, and `$patch: delete` an item."""
    if isinstance(base, dict) and isinstance(patch, dict):
        together = {key: merged(base.get(key), value, key) for key, value in patch.items() if value is not None}
        return {key: value for key, value in base.items() if key not in patch} | together
    key = _MERGE_KEYS.get(field)
    if key is None or not isinstance(base, list) or not isinstance(patch, list):
        return patch
    items = {each[key]: each for each in base}
    for each in patch:
        items[each[key]] = merged(items.get(each[key], {}), each)
    return [each for each in items.values() if each.get("$patch") != "delete"]
