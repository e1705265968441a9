"""Reads an Envoy configuration: its listeners, and the routes that send requests to clusters.

Routes are read before their virtual hosts and listeners, because the first value of a setting applies to the whole
gateway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headgate.config.convert.draft import Draft, base_path, described
from headgate.config.convert.envoy_clusters import EnvoyClusterReader
from headgate.config.convert.envoy_listeners import EnvoyListenerReader
from headgate.config.convert.envoy_resources import TYPE, EnvoyResources
from headgate.config.convert.source import SourceSection
from headgate.config.references import is_model_name

_RETRIES: Final = "the scheduler decides by the kind of failure; retry.attempts_max limits all attempts"
_ROUTE: Final = (
    ("cluster_header", "Headgate selects engines by the model in the request"),
    ("hash_policy", "Headgate routes by predicted time, with prefix affinity"),
    ("request_mirror_policies", "Headgate does not mirror requests"),
    ("rate_limits", "Headgate limits tenants; see docs/guides/tenants-and-keys.md"),
    ("regex_rewrite", "Headgate always sends its own paths to engines"),
    ("host_rewrite_literal", "Headgate sends its own headers to engines"),
    ("auto_host_rewrite", "Headgate sends its own headers to engines"),
    ("priority", "set priority_band of the class"),
    ("max_stream_duration", "attempt_timeout limits the duration of each attempt"),
)
_HEADERS: Final = ("request_headers_to_remove", "response_headers_to_add", "response_headers_to_remove")
_HEADER_RULES: Final = (
    *((name, "Headgate sends its own headers") for name in _HEADERS),
    ("typed_per_filter_config", "HTTP filters have no equivalent"),
)
_ENGINE_PAGES: Final = frozenset(
    {"/health", "/healthz", "/ready", "/readyz", "/live", "/livez", "/ping", "/metrics", "/version", "/docs", "/status"}
)
"""Paths outside the API that a route may also send to the engines."""


@dataclass(slots=True)
class EnvoyReader:
    draft: Draft
    engine: str
    models: Mapping[str, str]
    _resources: EnvoyResources = field(default_factory=EnvoyResources)
    _served: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Model and base path of the clusters that have been read."""

    def read(self, roots: Sequence[SourceSection]) -> None:
        for each in roots:
            self._resources.collect(each)
        resources = self._resources
        listeners = EnvoyListenerReader(self.draft, resources, self._route_config)
        for each in resources.listeners:
            listeners.read(each)
        for name, each in resources.routes.items():
            if not resources.listeners:
                self._route_config(each)
            elif name not in listeners.used_routes:
                each.skip()
                each.report("no listener uses it")
        if not resources.listeners and not resources.routes:
            for name, each in resources.clusters.items():
                self._serve([name], None, "", None, each)
        for name, each in resources.clusters.items():
            if name not in self._served:
                each.skip()
                each.report("no route uses it")

    # Routes

    def _route_config(self, config: SourceSection) -> None:
        config.skip("name", "validate_clusters", TYPE)
        for host in config.sections("virtual_hosts"):
            host.skip("name")
            if host.texts("domains") not in ([], ["*"]):
                host.change("domains", "Headgate serves all host names")
            for route in host.sections("routes"):
                self._route(route, [route, host, config])
            self._retries(host.section("retry_policy"))
            host.drop_all(_HEADER_RULES)
        config.drop_all(_HEADER_RULES)

    def _route(self, route: SourceSection, scopes: Sequence[SourceSection]) -> None:
        match, action = route.section("match"), route.section("route")
        route.skip("name", "metadata", "decorator", "stat_prefix")
        if not action.names():
            route.skip()
            match.skip()
            route.report("it has no cluster")
            return
        pattern = match.text("prefix") or match.text("path_separated_prefix") or match.text("path") or ""
        if pattern.rstrip("/") in _ENGINE_PAGES:
            for each in (route, match, action):
                each.skip()
            route.report("Headgate has its own pages for health and metrics")
            return
        model = self._model_of_headers(match, route)
        match.drop("safe_regex", message="Headgate serves the paths of the API")
        match.skip("case_sensitive")
        clusters = self._clusters(action)
        if clusters:
            path = self._base_path(route, pattern, action.text("prefix_rewrite"))
            self._serve(clusters, model, path, self._api_key(clusters[0], scopes), route)
        self._timeouts(action)
        action.drop_all(_ROUTE)
        route.drop_all(_HEADER_RULES)

    def _model_of_headers(self, match: SourceSection, route: SourceSection) -> str | None:
        """Returns the model name in a header that selects the route. Model gateways copy it from the request body."""
        found: str | None = None
        for each in match.sections("headers"):
            name = (each.text("name") or "").lower()
            value = each.section("string_match").text("exact") or each.text("exact_match")
            if found is None and name.endswith(("model", "model-name")) and value and is_model_name(value):
                found = value
                route.change("match", f"the header {name} selects the route; Headgate reads the model from the body")
            else:
                each.skip()
                each.report("Headgate selects engines by the model in the request")
        return found

    def _clusters(self, action: SourceSection) -> list[str]:
        """Names of the clusters that the route uses."""
        names = [name] if (name := action.text("cluster")) else []
        weighted = action.section("weighted_clusters")
        weighted.skip("total_weight", "runtime_key_prefix")
        for each in weighted.sections("clusters"):
            name, weight = each.text("name"), each.whole("weight")
            if weight == 0:
                each.report("its weight is 0")
            elif name:
                names.append(name)
            each.drop_all(_HEADER_RULES)
        if len(names) > 1:
            action.change("weighted_clusters", "weights have no effect, because Headgate routes by predicted time")
        return names

    def _serve(
        self, names: Sequence[str], model: str | None, path: str, api_key: str | None, source: SourceSection
    ) -> None:
        """Adds the clusters of a route, all of which serve the same model."""
        known = [each for each in names if each in self._resources.clusters]
        for each in names:
            if each not in self._resources.clusters:
                source.report(f'the cluster "{each}" is not in the source')
        if not known:
            return
        read = next((each for each in known if each in self._served), None)
        if model is None:
            model = self._served[read][0] if read is not None else self._model(known[0], source)
        reader = EnvoyClusterReader(self.draft, self.engine, self._resources)
        for name in known:
            if name not in self._served:
                self._served[name] = model, path
                reader.read(name, model, path, api_key)
                continue
            first, first_path = self._served[name]
            if path != first_path:
                source.report(f'another route already serves the cluster "{name}" at another path')
            elif first != model:
                self.draft.add_alias(model, first)
                source.change("", f'the cluster "{name}" gets requests for "{model}" with the model name "{first}"')

    def _model(self, cluster: str, source: SourceSection) -> str:
        given = self.models.get(cluster, self.models.get(""))
        if given is not None:
            return given
        valid = self.draft.model_name(cluster, source.at())
        hint = f"clients must send it, or convert again with --model {cluster}=NAME"
        source.change("", f'Envoy has no model names, so the model is called "{valid}"; {hint}')
        return valid

    def _base_path(self, route: SourceSection, pattern: str, rewrite: str | None) -> str:
        """Base path of the engines. Clients always use /v1."""
        client = base_path(pattern)
        if client:
            route.change("match", f"clients use /v1 instead of {client}/v1")
        if rewrite is None:
            return client
        if client != pattern.rstrip("/") and base_path(rewrite) == rewrite.rstrip("/"):
            route.change("route", "Envoy removes /v1 from the path; Headgate sends it to the engines")
        return base_path(rewrite)

    def _api_key(self, cluster: str, scopes: Sequence[SourceSection]) -> str | None:
        for scope in scopes:
            for each in scope.sections("request_headers_to_add"):
                header = each.section("header")
                kind, _, value = (header.text("value") or "").partition(" ")
                each.skip("append", "append_action", "keep_empty_value")
                if (header.text("key") or "").lower() != "authorization" or kind.lower() != "bearer" or not value:
                    each.report("only Authorization with a bearer token can be sent to engines")
                elif "%" in value:
                    each.change("", "Headgate does not forward the client's key; it sends api_key of the pool")
                else:
                    variable = self.draft.secret(value, f"{cluster}_API_KEY", f"API key of the engines of {cluster}")
                    each.change("", f"secrets are not copied; set the environment variable {variable}")
                    return variable
        return None

    # Timeouts and retries

    def _timeouts(self, action: SourceSection) -> None:
        policy = action.section("retry_policy")
        attempt, whole = policy.seconds("per_try_timeout"), action.seconds("timeout")
        if whole == 0:
            action.change("timeout", "0s turns it off in Envoy; attempt_timeout of the classes applies")
        elif whole and attempt:
            action.drop("timeout", message="Headgate limits each attempt; per_try_timeout becomes attempt_timeout")
        if value := attempt or whole:
            place = policy.at("per_try_timeout") if attempt else action.at("timeout")
            self.draft.put_timeout("attempt_timeout", value, place)
        silence, idle = policy.seconds("per_try_idle_timeout"), action.seconds("idle_timeout")
        if silence and idle:
            action.drop("idle_timeout", message="per_try_idle_timeout applies instead")
        if value := silence or idle:
            place = policy.at("per_try_idle_timeout") if silence else action.at("idle_timeout")
            for setting in ("first_token_timeout", "stream_idle_timeout"):
                self.draft.put_timeout(setting, value, place)
        self._retries(policy)

    def _retries(self, policy: SourceSection) -> None:
        if not policy.names():
            return
        retries = policy.whole("num_retries")
        if retries is not None:
            comment = f"From {described(policy.at('num_retries'))}, which does not count the first attempt."
            self.draft.put_number(("retry", "attempts_max"), retries + 1, policy.at("num_retries"), comment)
        for name in policy.unread():
            policy.drop(name, message=_RETRIES)
