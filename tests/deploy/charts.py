"""Renders the Helm chart in deploy/helm with Helm itself."""

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from tests.deploy.manifests import DEPLOY, Manifest, Tree
from tests.deploy.tools import tools

CHART = DEPLOY / "helm" / "headgate"
VALUE_SETS = {path.name.removesuffix("-values.yaml"): path for path in sorted((CHART / "ci").glob("*-values.yaml"))}


class ChartError(Exception):
    """Helm rejected the values or could not render the chart."""


@dataclass(frozen=True)
class Release:
    """All objects of a rendered chart."""

    manifests: tuple[Manifest, ...]

    def the(self, kind: str, name: str = "headgate") -> Manifest:
        [found] = [each for each in self.manifests if (each.kind, each.name) == (kind, name)]
        return found

    def all_of(self, kind: str) -> list[Manifest]:
        return [each for each in self.manifests if each.kind == kind]

    @property
    def config(self) -> str:
        """Text of the gateway's configuration file."""
        [text] = self.the("ConfigMap").tree["data"].values()
        return text


@cache
def rendered(values: str, *options: str, name: str = "headgate") -> Release:
    """Render the chart with a value set of the chart and more options of `helm template`. Do not change the result."""
    printed = helm("template", name, CHART, "--namespace", "headgate", "--values", VALUE_SETS[values], *options)
    trees: list[Tree] = [tree for tree in yaml.safe_load_all(printed) if tree]
    return Release(tuple(Manifest(values, tree) for tree in trees))


def helm(*arguments: str | Path) -> str:
    """Run Helm without the user's settings, and return its output."""
    command = [tools() / "bin/helm", *arguments]
    done = subprocess.run(command, env={"HOME": "/nonexistent"}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChartError(done.stderr)
    return done.stdout
