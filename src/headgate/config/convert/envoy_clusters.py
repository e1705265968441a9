"""Reads a cluster of an Envoy configuration: its endpoints, limits, failure detection and TLS."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from headgate.config.convert.draft import Draft, PoolDraft, described
from headgate.config.convert.envoy_resources import EnvoyResources, type_of
from headgate.config.convert.envoy_tls import EnvoyTls
from headgate.config.convert.source import SourceSection
from headgate.model.units import MINUTE, SECOND

_IN_FLIGHT_LIKELY_MAX: Final = 4096
"""Higher limits are meant to be unreachable; engines do not run that many requests at a time."""
_EJECTION_TIME: Final = 30 * SECOND
"""Envoy's default."""
_ZONE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TYPES: Final = ("STATIC", "STRICT_DNS", "LOGICAL_DNS", "EDS", "ORIGINAL_DST")
_ROUTED: Final = "Headgate routes by predicted time, with prefix affinity"
_UNHEALTHY: Final = frozenset({"UNHEALTHY", "DRAINING", "TIMEOUT"})
_CLUSTER: Final = (
    ("health_checks", "Headgate always probes the engines"),
    ("lb_policy", _ROUTED),
    ("load_balancing_policy", _ROUTED),
    ("lb_subset_config", _ROUTED),
    ("ring_hash_lb_config", _ROUTED),
    ("maglev_lb_config", _ROUTED),
    ("common_lb_config", _ROUTED),
    ("connect_timeout", "connections to engines have a fixed timeout"),
    ("dns_resolvers", "set fleet.nameserver of the pool"),
    ("typed_dns_resolver_config", "set fleet.nameserver of the pool"),
    ("respect_dns_ttl", "set fleet.resolve_interval of the pool"),
    ("http2_protocol_options", "connections to engines use HTTP/1.1"),
    ("typed_extension_protocol_options", "connections to engines use HTTP/1.1"),
    ("transport_socket_matches", "all endpoints of a pool have the same TLS settings"),
)
_DESCRIPTIVE: Final = (
    *("name", "alt_stat_name", "metadata", "eds_cluster_config", "dns_lookup_family", "wait_for_warm_on_init"),
    *("track_cluster_stats", "http_protocol_options"),
)
_THRESHOLDS: Final = (
    ("max_connections", "Headgate limits requests (in_flight_max), not connections to engines"),
    ("max_pending_requests", "requests wait in queues; see classes.NAME.queue_length_max"),
    ("max_retries", "retries are limited by shares of the requests; see retry.pool_budget_percent"),
)
_OUTLIERS: Final = (
    ("interval", "failures are counted as they happen"),
    ("max_ejection_percent", "all endpoints that fail are ejected"),
)


@dataclass(frozen=True, slots=True)
class EnvoyEndpoint:
    host: str
    port: int
    section: SourceSection
    zone: str | None
    is_standby: bool


class _Target(NamedTuple):
    model: str
    scheme: str
    path: str
    in_flight_max: int | None


@dataclass(frozen=True, slots=True)
class EnvoyClusterReader:
    draft: Draft
    engine: str
    resources: EnvoyResources

    def read(self, name: str, model: str, path: str, api_key: str | None) -> None:
        """Adds the endpoints of a cluster, with this base path."""
        cluster = self.resources.clusters[name]
        kind = self._kind(cluster)
        endpoints = self._endpoints(cluster, name, kind)
        connection = EnvoyTls(self.draft, self.resources).of_cluster(cluster.section("transport_socket"))
        if connection is None:
            cluster.skip()
            cluster.report("Headgate does not support its transport")
            return
        scheme, tls = connection
        pool = PoolDraft(name, self.engine, None, api_key, tuple(tls.items()))
        is_fleet = kind == "STRICT_DNS" and len(endpoints) == 1 and not _is_address(endpoints[0].host)
        limit = self._limits(cluster, 0 if is_fleet else len(endpoints))
        target = _Target(model, scheme, path, limit)
        if is_fleet:
            self._fleet(endpoints[0], cluster, pool, target)
        else:
            cluster.drop("dns_refresh_rate", message="only dns fleets resolve names at intervals")
            self._add(endpoints, kind, pool, target)
        self._outliers(cluster.section("outlier_detection"))
        self._slow_start(cluster)
        cluster.drop_all(_CLUSTER)
        cluster.skip(*_DESCRIPTIVE)

    # Endpoints

    def _kind(self, cluster: SourceSection) -> str:
        extension = cluster.section("cluster_type")
        extension.skip("name")
        config = extension.section("typed_config")
        if type_of(config) == "DnsCluster":
            config.skip("typed_dns_resolver_config", "dns_lookup_family", "dns_refresh_rate")
            return "LOGICAL_DNS" if config.flag("all_addresses_in_single_endpoint") else "STRICT_DNS"
        text = cluster.text("type") or "STATIC"
        # The JSON form of protobuf also accepts the number of a value.
        return _TYPES[int(text)] if text in {"0", "1", "2", "3", "4"} else text

    def _endpoints(self, cluster: SourceSection, name: str, kind: str) -> list[EnvoyEndpoint]:
        assignment = cluster.section("load_assignment")
        if kind == "EDS" and not assignment.names():
            eds = cluster.section("eds_cluster_config")
            service = eds.text("service_name") or name
            eds.skip()
            if service not in self.resources.assignments:
                self.draft.file.drop(
                    *cluster.at(), "its endpoints are not in the source; convert the output of /config_dump?include_eds"
                )
                return []
            assignment = self.resources.assignments[service]
        elif kind not in _TYPES or kind == "ORIGINAL_DST":
            assignment.skip()
            self.draft.file.drop(*cluster.at("type"), "the cluster has no list of endpoints that can be carried over")
            return []
        assignment.skip("cluster_name")
        assignment.drop("policy", message=_ROUTED)
        return self._localities(assignment)

    def _localities(self, assignment: SourceSection) -> list[EnvoyEndpoint]:
        found: list[EnvoyEndpoint] = []
        weights: set[int] = set()
        for each in assignment.sections("endpoints"):
            locality = each.section("locality")
            zone = locality.text("zone") or ""
            locality.skip("region", "sub_zone")
            each.take("load_balancing_weight")
            standby = bool(each.whole("priority"))
            for endpoint in each.sections("lb_endpoints"):
                weights.add(endpoint.whole("load_balancing_weight") or 1)
                address = self._address(endpoint)
                if address is not None:
                    found.append(EnvoyEndpoint(*address, endpoint, zone if _ZONE.fullmatch(zone) else None, standby))
        if len(weights) > 1:
            assignment.change("endpoints", "weights have no effect, because Headgate routes by predicted time")
        return found

    def _address(self, endpoint: SourceSection) -> tuple[str, int] | None:
        inner = endpoint.section("endpoint")
        address = inner.section("address")
        socket = address.section("socket_address")
        host, port = socket.text("address"), socket.whole("port_value")
        endpoint.skip("metadata")
        inner.skip("hostname", "health_check_config")
        socket.skip("protocol", "ipv4_compat")
        if endpoint.text("health_status") in _UNHEALTHY:
            endpoint.report("it is unhealthy or draining (health_status); add it to the endpoints when it is back")
        elif not host or not port:
            address.skip()
            endpoint.report("only host names and addresses with a port can be endpoints")
        else:
            return host, port
        return None

    def _add(self, endpoints: Sequence[EnvoyEndpoint], kind: str, pool: PoolDraft, target: _Target) -> None:
        standby: tuple[str, PoolDraft] | None = None
        for each in endpoints:
            place = each.section.at()
            if each.is_standby and any(not other.is_standby for other in endpoints):
                standby = standby or self.draft.standby(target.model, pool, place)
            host = f"[{each.host}]" if ":" in each.host else each.host
            if kind == "STRICT_DNS" and not _is_address(each.host):
                each.section.change("", "it is one endpoint, even if its name has several addresses")
            used_model, used_pool = standby if each.is_standby and standby is not None else (target.model, pool)
            url = f"{target.scheme}://{host}:{each.port}{target.path}"
            self.draft.add_endpoint(
                used_model, url, used_pool, place, in_flight_max=target.in_flight_max, zone=each.zone
            )

    def _fleet(self, endpoint: EnvoyEndpoint, cluster: SourceSection, pool: PoolDraft, target: _Target) -> None:
        """Each address of the name is an endpoint."""
        if target.path:
            endpoint.section.report(f"endpoints of a dns fleet have no base path, and the route sends {target.path}")
            return
        fleet = [("kind", "dns"), ("name", endpoint.host), ("port", str(endpoint.port)), ("scheme", target.scheme)]
        rate = cluster.seconds("dns_refresh_rate") or 0
        if SECOND <= rate <= 24 * 60 * MINUTE:
            fleet.append(("resolve_interval", f"{rate // SECOND}s"))
        if endpoint.zone is not None:
            fleet.append(("zone", endpoint.zone))
        if target.scheme == "https" and "server_name" not in dict(pool.tls):
            cluster.change("transport_socket", "the engines' certificates must contain the name of the fleet")
            pool = replace(pool, tls=(*pool.tls, ("server_name", endpoint.host)))
        pool = replace(pool, fleet=tuple(fleet))
        self.draft.add_fleet(target.model, pool, endpoint.section.at(), in_flight_max=target.in_flight_max)

    # Limits and failures

    def _limits(self, cluster: SourceSection, count: int) -> int | None:
        """Returns `in_flight_max` for each of `count` endpoints. A count of 0 means that their number is unknown."""
        breakers = cluster.section("circuit_breakers")
        breakers.drop("per_host_thresholds", message="Headgate limits requests (in_flight_max), not connections")
        limit: int | None = None
        for each in breakers.sections("thresholds"):
            if each.text("priority") not in (None, "DEFAULT", "0"):
                each.skip()
                each.report("requests of routes with a high priority have the same limits; see classes")
                continue
            each.skip("track_remaining")
            each.drop_all(_THRESHOLDS)
            self._retry_budget(each.section("retry_budget"))
            limit = self._share(each, count)
        return limit

    def _share(self, threshold: SourceSection, count: int) -> int | None:
        total = threshold.whole("max_requests")
        if total is None or (count and total == 0):
            return None
        if not count:
            reason = "it limits all endpoints together, and their number is not known; set in_flight_max of each"
            threshold.drop("max_requests", message=reason)
            return None
        if total // count > _IN_FLIGHT_LIKELY_MAX:
            threshold.drop("max_requests", message="engines run fewer requests; in_flight_max is an estimate")
            return None
        share = max(total // count, 1)
        if count > 1:
            threshold.change("max_requests", f"it limits {count} endpoints together; in_flight_max of each is {share}")
        return share

    def _retry_budget(self, budget: SourceSection) -> None:
        percent = budget.section("budget_percent").number("value")
        if percent is not None and 1 <= percent <= 100:
            comment = f"From {described(budget.at())}, which counts open requests."
            self.draft.put_number(("retry", "pool_budget_percent"), int(percent), budget.at(), comment)
        if retries := budget.whole("min_retry_concurrency"):
            self.draft.put_number(("retry", "pool_retries_min"), retries, budget.at("min_retry_concurrency"))

    def _outliers(self, outliers: SourceSection) -> None:
        if not outliers.names():
            return
        counts = [outliers.whole(name) for name in ("consecutive_5xx", "consecutive_gateway_failure")]
        if count := next((each for each in counts if each), None):
            comment = f"From {described(outliers.at())}."
            self.draft.put_number(("health", "consecutive_failures_max"), count, outliers.at(), comment)
        self._ejection_time(outliers)
        outliers.drop_all(_OUTLIERS)
        for name in outliers.unread():
            if name.startswith(("enforcing", "success_rate", "failure_percentage")):
                outliers.drop(name, message="endpoints that fail are always ejected, by consecutive failures")

    def _ejection_time(self, outliers: SourceSection) -> None:
        base, longest = outliers.seconds("base_ejection_time"), outliers.seconds("max_ejection_time")
        if longest:
            base = base or _EJECTION_TIME
            # The maximum belongs to the ejection time of the same cluster.
            known = self.draft.get(("health", "ejection_time")) is not None
            if longest < base or (known and self.draft.get(("health", "ejection_time_max")) is None):
                outliers.drop("max_ejection_time", message="it does not fit health.ejection_time")
            else:
                place = outliers.at("max_ejection_time")
                self.draft.put_duration(("health", "ejection_time_max"), longest, place, f"From {described(place)}.")
        if base:
            self.draft.put_ejection_time(base, outliers.at("base_ejection_time"))

    def _slow_start(self, cluster: SourceSection) -> None:
        for name in ("round_robin_lb_config", "least_request_lb_config"):
            balancing = cluster.section(name)
            window = balancing.section("slow_start_config").seconds("slow_start_window")
            if window:
                place = cluster.at(f"{name}.slow_start_config")
                self.draft.put_duration(("health", "slow_start"), window, place, f"From {described(place)}.")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
