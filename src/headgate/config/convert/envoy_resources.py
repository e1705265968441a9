"""Resources of an Envoy configuration: listeners, routes, clusters, endpoints and secrets.

They come from a bootstrap file, from files with xDS resources, or from the output of the admin page `/config_dump`.
"""

from dataclasses import dataclass, field
from typing import Final

from headgate.config.convert.source import SourceSection

TYPE: Final = "@type"
_TYPE_PREFIX: Final = "type.googleapis.com/envoy."
_BOOTSTRAP: Final = (
    ("admin", "see admin_listen"),
    ("dynamic_resources", "resources of a control plane are not in this file; convert the output of /config_dump"),
    ("stats_sinks", "Headgate exports Prometheus metrics"),
    ("tracing", "see docs/guides/tracing.md"),
)
# Lists in a dump, with the path to the resource in each item.
_DUMPS: Final = (
    ("ClustersConfigDump", "static_clusters", ("cluster",)),
    ("ClustersConfigDump", "dynamic_active_clusters", ("cluster",)),
    ("ListenersConfigDump", "static_listeners", ("listener",)),
    ("ListenersConfigDump", "dynamic_listeners", ("active_state", "listener")),
    ("RoutesConfigDump", "dynamic_route_configs", ("route_config",)),
    ("EndpointsConfigDump", "static_endpoint_configs", ("endpoint_config",)),
    ("EndpointsConfigDump", "dynamic_endpoint_configs", ("endpoint_config",)),
)
_KINDS: Final = {
    "cluster": "Cluster",
    "listener": "Listener",
    "route_config": "RouteConfiguration",
    "endpoint_config": "ClusterLoadAssignment",
}


@dataclass(slots=True)
class EnvoyResources:
    listeners: list[SourceSection] = field(default_factory=list[SourceSection])
    routes: dict[str, SourceSection] = field(default_factory=dict[str, SourceSection])
    """Route configurations outside of listeners."""
    clusters: dict[str, SourceSection] = field(default_factory=dict[str, SourceSection])
    assignments: dict[str, SourceSection] = field(default_factory=dict[str, SourceSection])
    """Endpoints of EDS clusters."""
    secrets: dict[str, SourceSection] = field(default_factory=dict[str, SourceSection])

    def collect(self, root: SourceSection) -> None:
        """Raises `ConversionError`."""
        kind = type_of(root)
        if kind not in ("", "Bootstrap"):
            self._add(root, kind)
            return
        static = root.section("static_resources")
        for name, kind in (("listeners", "Listener"), ("clusters", "Cluster"), ("secrets", "Secret")):
            for each in static.sections(name):
                self._add(each, kind)
        for each in root.sections("resources"):
            self._add(each, type_of(each))
        root.skip("version_info", "type_url", "nonce", "node")
        for each in root.sections("configs"):
            self._dump(each)
        root.drop_all(_BOOTSTRAP)

    def _dump(self, dump: SourceSection) -> None:
        dump_kind = type_of(dump)
        for kind, name, path in _DUMPS:
            for each in dump.sections(name) if kind == dump_kind else ():
                inner = each
                for step in path:
                    # Times, versions and older states of the resource.
                    inner.skip()
                    inner = inner.section(step)
                if inner.names():
                    inner.take(TYPE)
                    self._add(inner, _KINDS[path[-1]])
        dump.skip()

    def _add(self, resource: SourceSection, kind: str) -> None:
        match kind:
            case "Listener":
                self.listeners.append(resource)
            case "RouteConfiguration":
                self.routes.setdefault(resource.text("name") or "", resource)
            case "Cluster":
                name = resource.text("name")
                if not name:
                    raise resource.error("name", "missing; set it, or remove the cluster")
                if name in self.clusters:
                    raise resource.error("name", f"is the name of two clusters, {self.clusters[name].setting()} is one")
                self.clusters[name] = resource
            case "ClusterLoadAssignment":
                self.assignments[resource.text("cluster_name") or ""] = resource
            case "Secret":
                self.secrets[resource.text("name") or ""] = resource
            case _:
                resource.skip()
                resource.report("only listeners, routes, clusters, endpoints and secrets can be carried over")


def type_of(section: SourceSection) -> str:
    """The last part of the section's protobuf type; empty if it has no type."""
    return (section.text(TYPE) or "").rpartition(".")[2]


def is_envoy(root: SourceSection) -> bool:
    if not {"static_resources", "staticResources"}.isdisjoint(root.names()):
        return True
    items = [*root.list_of("resources"), *root.list_of("configs")]
    kinds = [each.get(TYPE) for each in items if isinstance(each, dict)]
    kinds.append(root.text(TYPE) if TYPE in root else None)
    return any(isinstance(each, str) and each.startswith(_TYPE_PREFIX) for each in kinds)
