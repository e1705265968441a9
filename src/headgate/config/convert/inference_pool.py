"""Reads manifests of the Gateway API inference extension: InferencePools, their models, and the routes to them.

Headgate does not use the Kubernetes API. It finds the pods of a pool through a headless Service, which the result
describes if the source does not contain one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headgate.config.convert.draft import IN_FLIGHT_ESTIMATE, Draft, PoolDraft, base_path
from headgate.config.convert.inference_classes import InferenceClasses
from headgate.config.convert.kubernetes_objects import KubernetesObject, kubernetes_objects
from headgate.config.convert.source import SourceSection
from headgate.config.references import is_model_name
from headgate.config.yaml_document import quoted
from headgate.model.units import MILLISECOND, MINUTE, SECOND

_LABEL_LENGTH_MAX: Final = 63
_DURATION: Final = re.compile(r"(?:[0-9]{1,5}(?:h|ms|m|s)){1,4}")
_DURATION_PART: Final = re.compile(r"([0-9]+)(h|ms|m|s)")
_UNITS: Final = {"h": 60 * MINUTE, "m": MINUTE, "s": SECOND, "ms": MILLISECOND}
_READ: Final = frozenset(
    {"InferencePool", "InferenceModel", "InferenceModelRewrite", "InferenceObjective", "HTTPRoute", "Service"}
)
_CLASSES: Final = {"Critical": "interactive", "Sheddable": "batch"}
_PICKER: Final = "Headgate selects endpoints by itself, without an endpoint picker"
_ROUTED: Final = "Headgate selects engines by the model in the request"
PoolKey = tuple[str, str]
"""Namespace and name."""


@dataclass(slots=True)
class InferencePoolReader:
    draft: Draft
    engine: str
    models: Mapping[str, str]
    _pools: dict[PoolKey, KubernetesObject] = field(default_factory=dict[PoolKey, KubernetesObject])
    _names: dict[PoolKey, dict[str, str]] = field(default_factory=dict[PoolKey, dict[str, str]])
    """Models of each pool, with the name that its engines use."""
    _services: dict[tuple[str, tuple[tuple[str, str], ...]], str] = field(
        default_factory=dict[tuple[str, tuple[tuple[str, str], ...]], str]
    )
    """Headless Services by namespace and selector."""

    def read(self, roots: Sequence[SourceSection]) -> None:
        by_kind: dict[str, list[KubernetesObject]] = {}
        for each in kubernetes_objects(roots):
            by_kind.setdefault(each.kind, []).append(each)
            if each.kind not in _READ:
                each.section.skip()
                self.draft.file.drop(each.section.line(), each.label, "it stays in the cluster as it is")
        for each in by_kind.get("Service", ()):
            self._service(each)
        for each in by_kind.get("InferencePool", ()):
            self._pools.setdefault((each.namespace, each.name), each)
        for each in by_kind.get("InferenceModel", ()):
            self._model(each)
        for each in by_kind.get("InferenceModelRewrite", ()):
            self._rewrite(each)
        InferenceClasses(self.draft).read(by_kind.get("InferenceObjective", ()))
        for each in by_kind.get("HTTPRoute", ()):
            self._route(each)
        for key, each in self._pools.items():
            self._pool(key, each)

    # Pools

    def _pool(self, key: PoolKey, pool: KubernetesObject) -> None:
        spec = pool.section.section("spec")
        selector = spec.section("selector")
        inner = selector.section("match_labels") if "match_labels" in selector else selector
        labels = tuple(sorted((name, inner.text(name) or "") for name in inner.names()))
        ports = [each.whole("number") for each in spec.sections("target_ports")]
        ports = [each for each in (*ports, spec.whole("target_port_number")) if each]
        for name in ("endpoint_picker_ref", "extension_ref"):
            spec.drop(name, message=_PICKER)
        if spec.text("app_protocol") not in (None, "http"):
            spec.drop("app_protocol", message="connections to engines use HTTP/1.1")
        if not labels or not ports:
            raise spec.error("target_ports" if labels else "selector", "missing; set it, or remove the InferencePool")
        host = f"{self._service_name(pool, labels, ports)}.{pool.namespace}.svc.cluster.local"
        names = self._names_of(key, pool)
        share = max(IN_FLIGHT_ESTIMATE // len(names), 1) if len(names) > 1 else None
        if share is not None:
            shared = f"its engines serve {len(names)} models, each in a pool of its own with in_flight_max {share}"
            self.draft.file.change(pool.section.line(), pool.label, shared)
        for port in ports:
            fleet = (("kind", "dns"), ("name", host), ("port", str(port)))
            for model, served in names.items():
                draft = PoolDraft(
                    pool.name, self.engine, served if len(names) > 1 or served != model else None, fleet=fleet
                )
                self.draft.add_fleet(model, draft, (pool.section.line(), pool.label), in_flight_max=share)

    def _names_of(self, key: PoolKey, pool: KubernetesObject) -> Mapping[str, str]:
        given = self.models.get(pool.name, self.models.get(""))
        if given is not None:
            return {given: given}
        if key in self._names:
            return self._names[key]
        place = pool.section.line(), pool.label
        valid = self.draft.model_name(pool.name, place)
        hint = f"clients must send it, or convert again with --model {pool.name}=NAME"
        self.draft.file.change(*place, f'the source has no name for its model, so it is called "{valid}"; {hint}')
        # The engines may know the model by another name, so the name is forwarded as it is.
        return {valid: valid}

    def _service(self, service: KubernetesObject) -> None:
        spec = service.section.section("spec")
        if spec.text("clusterIP") == "None":
            selector = spec.section("selector")
            labels = tuple(sorted((name, selector.text(name) or "") for name in selector.names()))
            if spec.text("publish_not_ready_addresses") != "true":
                self._services.setdefault((service.namespace, labels), service.name)
        spec.skip()

    def _service_name(self, pool: KubernetesObject, labels: tuple[tuple[str, str], ...], ports: Sequence[int]) -> str:
        """Name of the headless Service with the pool's pods."""
        known = self._services.get((pool.namespace, labels))
        if known is not None:
            return known
        name = f"{pool.name.replace('.', '-')[: _LABEL_LENGTH_MAX - len('-engines')].rstrip('-')}-engines"
        problem = f'Headgate finds the pods through the headless Service "{name}"; create it, see the end of the result'
        self.draft.file.change(pool.section.line(), pool.label, problem)
        selector = ", ".join(f"{quoted(label)}: {quoted(value)}" for label, value in labels)
        listed = ", ".join(f"{{name: port-{port}, port: {port}}}" for port in ports)
        self.draft.manifests.append(
            (
                "apiVersion: v1",
                "kind: Service",
                f"metadata: {{name: {quoted(name)}, namespace: {quoted(pool.namespace)}}}",
                "spec:",
                "  clusterIP: None",
                f"  selector: {{{selector}}}",
                f"  ports: [{listed}]",
            )
        )
        return name

    # Models

    def _add_name(self, key: PoolKey, model: str, served: str, owner: KubernetesObject, line: int | None) -> None:
        if key not in self._pools:
            self.draft.file.drop(line, owner.label, f'the InferencePool "{key[1]}" is not in the source')
        elif not is_model_name(model) or not is_model_name(served):
            self.draft.file.drop(line, owner.label, "its model name has characters that Headgate does not allow")
        else:
            self._names.setdefault(key, {}).setdefault(model, served)

    def _model(self, each: KubernetesObject) -> None:
        spec = each.section.section("spec")
        model = spec.text("model_name")
        if not model:
            raise spec.error("model_name", "missing; set it, or remove the InferenceModel")
        served = self._target(spec, "target_models", "name") or model
        self._add_name(self._pool_of(spec, each), model, served, each, each.section.line())
        criticality = spec.text("criticality") or ""
        if criticality in _CLASSES:
            name = _CLASSES[criticality]
            spec.change("criticality", f'requests for "{model}" must name the class {name} in x-headgate-class')

    def _rewrite(self, each: KubernetesObject) -> None:
        spec = each.section.section("spec")
        key = self._pool_of(spec, each)
        for rule in spec.sections("rules"):
            served = self._target(rule, "targets", "model_rewrite")
            matches = [match.section("model") for match in rule.sections("matches")]
            if served is None or not matches:
                rule.report("only rules with a model and a target can be carried over")
                continue
            for match in matches:
                match.skip("type")
                self._add_name(key, match.text("value") or "", served, each, rule.line())

    def _target(self, spec: SourceSection, setting: str, name: str) -> str | None:
        """Name of the target model with the highest weight."""
        targets = [(each.whole("weight") or 0, each.text(name)) for each in spec.sections(setting)]
        if len(targets) > 1:
            spec.change(setting, "all requests go to the model with the highest weight; for a split, use two models")
        return max(targets, key=lambda target: target[0])[1] if targets else None

    @staticmethod
    def _pool_of(spec: SourceSection, owner: KubernetesObject) -> PoolKey:
        reference = spec.section("pool_ref")
        reference.skip("group", "kind")
        return owner.namespace, reference.text("name") or ""

    # Routes

    def _route(self, route: KubernetesObject) -> None:
        spec = route.section.section("spec")
        spec.skip("parent_refs")
        if spec.texts("hostnames"):
            spec.change("hostnames", "Headgate serves all host names")
        for rule in spec.sections("rules"):
            rule.skip("name")
            pools = self._backends(rule, route)
            names = self._matched_models(rule)
            if pools and not names and len(pools) > 1:
                names = [name for key in pools for name in self._names.get(key, ())] or [pools[0][1]]
            for key in pools:
                for name in names:
                    self._add_name(key, name, name, route, rule.line())
            self._timeouts(rule)
            retry = rule.section("retry")
            if (attempts := retry.whole("attempts")) is not None:
                comment = "From retry.attempts of an HTTPRoute, which does not count the first attempt."
                self.draft.put_number(("retry", "attempts_max"), attempts + 1, retry.at("attempts"), comment)
            rule.drop("filters", message="Headgate sends its own paths and headers to engines")

    def _backends(self, rule: SourceSection, route: KubernetesObject) -> list[PoolKey]:
        pools: list[PoolKey] = []
        for each in rule.sections("backend_refs"):
            each.skip("group", "port")
            key = each.text("namespace") or route.namespace, each.text("name") or ""
            if each.text("kind") != "InferencePool":
                each.skip()
                each.report("only InferencePools can be carried over")
            elif key not in self._pools:
                each.skip()
                each.report(f'the InferencePool "{key[1]}" is not in the source')
            elif each.whole("weight") == 0:
                each.report("its weight is 0")
            else:
                pools.append(key)
        if len(pools) > 1:
            rule.change("backend_refs", "weights have no effect, because Headgate routes by predicted time")
        return pools

    def _matched_models(self, rule: SourceSection) -> list[str]:
        """Models in headers that select the rule."""
        found: list[str] = []
        for match in rule.sections("matches"):
            path = match.section("path")
            path.skip("type")
            if client := base_path(path.text("value") or ""):
                path.change("value", f"clients use /v1 instead of {client}/v1")
            for each in match.sections("headers"):
                name, value = (each.text("name") or "").strip().lower(), each.text("value") or ""
                if each.text("type") in (None, "Exact") and name.endswith(("model", "model-name")):
                    found.append(value)
                else:
                    each.report(_ROUTED)
        return list(dict.fromkeys(found))

    def _timeouts(self, rule: SourceSection) -> None:
        timeouts = rule.section("timeouts")
        for name in ("backend_request", "request"):
            text = timeouts.text(name)
            if text is None:
                continue
            if _DURATION.fullmatch(text) is None:
                raise timeouts.error(name, "must be a duration, such as 30s or 10m")
            value = sum(int(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(text))
            if value == 0:
                timeouts.change(name, "0s turns it off; attempt_timeout of the classes applies")
            elif name == "request" and "backend_request" in timeouts:
                timeouts.drop(name, message="Headgate limits each attempt; backendRequest becomes attempt_timeout")
            else:
                self.draft.put_timeout("attempt_timeout", value, timeouts.at(name))
