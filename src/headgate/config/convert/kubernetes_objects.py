"""Objects in Kubernetes manifests, in any number of documents and lists."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from headgate.config.convert.source import SourceSection

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_GROUPS: Final = ("inference.networking.k8s.io/", "inference.networking.x-k8s.io/", "llm-d.ai/")


@dataclass(frozen=True, slots=True)
class KubernetesObject:
    kind: str
    namespace: str
    name: str
    section: SourceSection

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}"


def kubernetes_objects(roots: Iterable[SourceSection]) -> Iterator[KubernetesObject]:
    """The objects of a manifest. Raises `ConversionError`."""
    for root in roots:
        kind = root.text("kind") or ""
        root.skip("apiVersion", "status")
        metadata = root.section("metadata")
        if kind.endswith("List") and "items" in root:
            metadata.skip()
            yield from kubernetes_objects(root.sections("items"))
            continue
        name, namespace = metadata.text("name") or "", metadata.text("namespace") or "default"
        metadata.skip()
        for setting, text in (("name", name), ("namespace", namespace)):
            if _NAME.fullmatch(text) is None:
                raise metadata.error(setting, "is not a valid Kubernetes name; correct it")
        yield KubernetesObject(kind, namespace, name, root)


def is_inference_manifest(root: SourceSection) -> bool:
    version = root.text("apiVersion")
    if version is not None and version.startswith(_GROUPS):
        return True
    items = [each.get("apiVersion") for each in root.list_of("items") if isinstance(each, dict)]
    return any(isinstance(each, str) and each.startswith(_GROUPS) for each in items)
