"""Loader for the Kubernetes manifests in deploy/."""

from dataclasses import dataclass
from typing import Any

import yaml

from tests.house.small_tree import PROJECT

DEPLOY = PROJECT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
NOT_KUBERNETES = ("headgate.yaml", "kustomization.yaml")

Tree = dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    file: str
    tree: Tree

    @property
    def kind(self) -> str:
        return self.tree["kind"]

    @property
    def name(self) -> str:
        return self.tree["metadata"]["name"]

    @property
    def spec(self) -> Tree:
        return self.tree["spec"]

    @property
    def pod(self) -> Tree:
        """A Deployment's pod specification."""
        return self.spec["template"]["spec"]

    @property
    def container(self) -> Tree:
        [container] = self.pod["containers"]
        return container

    @property
    def pod_labels(self) -> dict[str, str]:
        return self.spec["template"]["metadata"]["labels"]

    def port(self, name: str) -> int:
        [number] = [port["containerPort"] for port in self.container["ports"] if port["name"] == name]
        return number

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def manifests() -> list[Manifest]:
    files = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name not in NOT_KUBERNETES)
    return [Manifest(file.name, tree) for file in files for tree in yaml.safe_load_all(file.read_text())]


def the(kind: str, name: str) -> Manifest:
    [found] = [each for each in manifests() if (each.kind, each.name) == (kind, name)]
    return found


def all_of(kind: str) -> list[Manifest]:
    return [each for each in manifests() if each.kind == kind]


def kustomization() -> Tree:
    return yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())


def gateway_config() -> Tree:
    return yaml.safe_load((KUBERNETES / "headgate.yaml").read_text())


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()
