"""Reads the listeners of an Envoy configuration: their HTTP connection managers, HTTP filters and certificates."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headgate.config.convert.draft import ANONYMOUS_TENANT, Draft, described
from headgate.config.convert.envoy_resources import EnvoyResources, type_of
from headgate.config.convert.envoy_tls import EnvoyTls
from headgate.config.convert.source import SourceSection
from headgate.model.units import MINUTE

_DURATIONS: Final = (
    ("request_headers_timeout", ("limits", "header_timeout")),
    ("request_timeout", ("limits", "body_timeout")),
)
_CONNECTIONS: Final = (
    ("access_log", "see docs/guides/explain.md for records of requests"),
    ("tracing", "see docs/guides/tracing.md"),
    ("max_request_headers_kb", "see limits.header_bytes_max"),
    ("drain_timeout", "set drain_grace"),
    ("http2_protocol_options", "clients use HTTP/1.1; see docs/guides/tls.md for HTTP/2"),
    ("scoped_routes", "convert the output of /config_dump"),
)
_DESCRIPTIVE: Final = (
    *("stat_prefix", "codec_type", "generate_request_id", "use_remote_address", "xff_num_trusted_hops", "server_name"),
    *("skip_xff_append", "normalize_path", "merge_slashes", "server_header_transformation", "delayed_close_timeout"),
)
_ACCESS_FILTERS: Final = frozenset({"ApiKeyAuth", "BasicAuth", "ExtAuthz", "JwtAuthentication", "OAuth2", "RBAC"})


@dataclass(slots=True)
class EnvoyListenerReader:
    draft: Draft
    resources: EnvoyResources
    read_routes: Callable[[SourceSection], None]
    used_routes: set[str] = field(default_factory=set[str])

    def read(self, listener: SourceSection) -> None:
        listener.skip("name", "stat_prefix", "listener_filters", "traffic_direction")
        address = listener.section("address").section("socket_address")
        if port := address.text("port_value"):
            listener.change("address", f"Envoy listens on port {port}; set listen when you switch")
        address.skip()
        chains = listener.sections("filter_chains")
        if "default_filter_chain" in listener:
            chains.append(listener.section("default_filter_chain"))
        for chain in chains:
            chain.skip("name")
            chain.drop("filter_chain_match", message="Headgate serves all host names")
            for each in chain.sections("filters"):
                self._filter(each)
            EnvoyTls(self.draft, self.resources).of_listener(chain.section("transport_socket"))

    def _filter(self, network_filter: SourceSection) -> None:
        connections = network_filter.section("typed_config")
        network_filter.skip("name")
        if (kind := type_of(connections)) != "HttpConnectionManager":
            connections.skip()
            if kind in _ACCESS_FILTERS:
                self._restrict(network_filter)
            network_filter.report("only HTTP connection managers can be carried over")
            return
        if "route_config" in connections:
            self.read_routes(connections.section("route_config"))
        discovery = connections.section("rds")
        discovery.skip("config_source")
        if (name := discovery.text("route_config_name")) is not None:
            self.used_routes.add(name)
            if name in self.resources.routes:
                self.read_routes(self.resources.routes[name])
            else:
                discovery.report("its routes are not in the source; convert the output of /config_dump")
        self._connections(connections)
        filters = [(each, each.section("typed_config")) for each in connections.sections("http_filters")]
        # Rate limits depend on whether clients need a key.
        for each, config in sorted(filters, key=lambda found: type_of(found[1]) not in _ACCESS_FILTERS):
            self._http_filter(each, config)

    def _connections(self, connections: SourceSection) -> None:
        for name, path in _DURATIONS:
            if value := connections.seconds(name):
                self._duration(connections, name, path, value)
        if idle := connections.seconds("stream_idle_timeout"):
            for setting in ("first_token_timeout", "stream_idle_timeout"):
                self.draft.put_timeout(setting, idle, connections.at("stream_idle_timeout"))
        common = connections.section("common_http_protocol_options")
        if value := common.seconds("idle_timeout"):
            self._duration(common, "idle_timeout", ("limits", "keepalive_timeout"), value)
        if count := common.whole("max_headers_count"):
            self.draft.put_number(("limits", "header_count_max"), count, common.at("max_headers_count"))
        connections.drop_all(_CONNECTIONS)
        connections.skip(*_DESCRIPTIVE)

    def _duration(self, section: SourceSection, name: str, path: tuple[str, ...], value: int) -> None:
        place = section.at(name)
        self.draft.put_duration(path, value, place, f"From {described(place)}.")

    def _http_filter(self, http_filter: SourceSection, config: SourceSection) -> None:
        kind = type_of(config)
        http_filter.skip("name", "is_optional", "disabled")
        if kind == "Router":
            config.skip()
            return
        if kind == "Buffer" and (size := config.whole("max_request_bytes")):
            self.draft.put_body_size(size, config.at("max_request_bytes"))
        elif kind == "LocalRateLimit" and (limit := self._rate(config)):
            place = config.at("token_bucket")
            if self.draft.key_reason:
                http_filter.report(f"limits belong to tenants: set requests_per_minute: {limit} for each tenant")
            else:
                path = ("tenants", ANONYMOUS_TENANT, "limits", "requests_per_minute")
                self.draft.put_number(path, limit, place, f"From {described(place)}.")
        elif kind in _ACCESS_FILTERS:
            self._restrict(http_filter)
            hint = "docs/guides/sign-in.md" if kind == "JwtAuthentication" else "docs/guides/tenants-and-keys.md"
            http_filter.report(f"create keys instead; see {hint}")
        else:
            http_filter.report("the HTTP filter has no equivalent")
        config.skip()

    def _restrict(self, access_filter: SourceSection) -> None:
        reason = f"Envoy restricts access with {access_filter.text('name') or 'a filter'}"
        self.draft.key_reason = self.draft.key_reason or reason

    @staticmethod
    def _rate(config: SourceSection) -> int | None:
        """Returns the requests per minute of a token bucket. None if it rejects nothing, which is Envoy's default."""
        bucket = config.section("token_bucket")
        tokens, interval = bucket.whole("tokens_per_fill") or 1, bucket.seconds("fill_interval")
        bucket.skip("max_tokens")
        if not interval or "filter_enforced" not in config or "filter_enabled" not in config:
            return None
        return int(tokens * MINUTE / interval)
