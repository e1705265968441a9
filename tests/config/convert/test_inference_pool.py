"""Conversion of Gateway API inference extension manifests."""

from typing import Any

import pytest
import yaml

from headgate.model.policy import OptimizationGoal
from headgate.model.units import MINUTE, SECOND
from tests.config.convert.builders import converted, error_of, notes_of, settings_of, tree_of

V1 = "inference.networking.k8s.io/v1"
ALPHA = "inference.networking.x-k8s.io/v1alpha2"
SELECTOR = {"app": "qwen3", "generation": "8"}


def manifest(kind: str, name: str, version: str = ALPHA, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "llm"}, "spec": spec}


def pool(name: str = "qwen3", **spec: Any) -> dict[str, Any]:
    usual = {
        "selector": {"matchLabels": SELECTOR},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "picker", "port": {"number": 9002}, "failureMode": "FailOpen"},
    }
    return manifest("InferencePool", name, V1, **usual | spec)


def old_pool(name: str = "qwen3") -> dict[str, Any]:
    """The pool in version v1alpha2."""
    picker = {"name": "picker", "portNumber": 9002}
    return manifest("InferencePool", name, selector=SELECTOR, targetPortNumber=8000, extensionRef=picker)


def service(name: str = "pods", **spec: Any) -> dict[str, Any]:
    return manifest("Service", name, "v1", **{"clusterIP": "None", "selector": SELECTOR, **spec})


def inference_model(model: str, *targets: dict[str, Any], criticality: str | None = None) -> dict[str, Any]:
    spec = {"modelName": model, "poolRef": {"name": "qwen3"}}
    spec |= {"targetModels": list(targets)} if targets else {}
    spec |= {"criticality": criticality} if criticality else {}
    return manifest("InferenceModel", model.lower(), **spec)


def rewrite(*rules: dict[str, Any]) -> dict[str, Any]:
    return manifest("InferenceModelRewrite", "rewrite", poolRef={"name": "qwen3"}, rules=list(rules))


def objective(name: str, **spec: Any) -> dict[str, Any]:
    return manifest("InferenceObjective", name, **{"poolRef": {"name": "qwen3"}, **spec})


def backend(name: str = "qwen3", **more: Any) -> dict[str, Any]:
    return {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name, **more}


def route(*rules: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return manifest("HTTPRoute", "route", "gateway.networking.k8s.io/v1", rules=list(rules), **spec)


def by_header(model: str) -> dict[str, Any]:
    headers = [{"type": "Exact", "name": "X-Gateway-Model-Name", "value": model}]
    return {"path": {"type": "PathPrefix", "value": "/"}, "headers": headers}


def text_of(*manifests: dict[str, Any]) -> str:
    return yaml.safe_dump_all(manifests, sort_keys=False)


def reasons(*manifests: dict[str, Any], **options: Any) -> list[str]:
    """Notes without file and line, and without those that every pool has."""
    usual = ("without an endpoint picker", "see the end of the result", "so it is called")
    notes = [note.partition(": ")[2] for note in notes_of(text_of(*manifests), **options)]
    return [note for note in notes if not any(each in note for each in usual)]


@pytest.mark.parametrize("source", [pool(), old_pool()], ids=["v1", "v1alpha2"])
def test_pool_becomes_a_dns_fleet(source: dict[str, Any]) -> None:
    result = converted(text_of(source), engine="vllm")

    assert result.source_format == "inferencepool"
    assert yaml.safe_load(result.text)["pools"] == {
        "qwen3": {
            "engine": "vllm",
            "in_flight_max": 64,
            "fleet": {"kind": "dns", "name": "qwen3-engines.llm.svc.cluster.local", "port": 8000},
        }
    }
    assert yaml.safe_load(result.text)["models"] == {"qwen3": "qwen3"}
    assert [note.partition(": ")[2].partition(": ")[2] for note in map(str, result.notes)] == [
        (
            'changed: Headgate finds the pods through the headless Service "qwen3-engines"; create it, see the end of '
            "the result"
        ),
        (
            'changed: the source has no name for its model, so it is called "qwen3"; clients must send it, or convert '
            "again with --model qwen3=NAME"
        ),
        "not carried over: Headgate selects endpoints by itself, without an endpoint picker",
    ]


def test_result_contains_the_headless_service() -> None:
    text = converted(text_of(pool(targetPorts=[{"number": 8000}, {"number": 8001}]), pool("other"))).text
    heading = "# Create these objects in the cluster, without the comment signs:\n"
    lines = [line.removeprefix("# ") for line in text.partition(heading)[2].splitlines()]
    first, second = yaml.safe_load_all("\n".join(lines))

    assert first == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "qwen3-engines", "namespace": "llm"},
        "spec": {
            "clusterIP": "None",
            "selector": SELECTOR,
            "ports": [{"name": "port-8000", "port": 8000}, {"name": "port-8001", "port": 8001}],
        },
    }
    assert second["metadata"]["name"] == "other-engines"


@pytest.mark.parametrize(
    ("known", "name"),
    [
        (service(), "pods"),
        (service(selector={"app": "other"}), "qwen3-engines"),
        (service(clusterIP="10.0.0.1"), "qwen3-engines"),
        (service(publishNotReadyAddresses=True), "qwen3-engines"),
    ],
)
def test_headless_service_of_the_source_is_used(known: dict[str, Any], name: str) -> None:
    result = converted(text_of(known, pool()))

    assert f"name: {name}.llm.svc.cluster.local" in result.text
    assert ("Create these objects" in result.text) is (name != "pods")


def test_each_target_port_is_a_pool_of_the_model() -> None:
    tree = tree_of(text_of(pool(targetPorts=[{"number": 8000}, {"number": 8001}])))

    assert [each["fleet"]["port"] for each in tree["pools"].values()] == [8000, 8001]
    assert tree["models"] == {"qwen3": ["qwen3", "qwen3-2"]}


def test_lists_of_objects_are_read() -> None:
    items = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [pool()]}

    assert tree_of(yaml.safe_dump(items))["models"] == {"qwen3": "qwen3"}


def test_model_of_a_pool() -> None:
    source = [pool(), inference_model("chat", {"name": "Qwen/Qwen3-8B"})]
    tree = tree_of(text_of(*source))

    assert tree["models"] == {"chat": "qwen3"}
    assert tree["pools"]["qwen3"]["served_model"] == "Qwen/Qwen3-8B"
    assert tree_of(text_of(*source), models={"": "given"})["models"] == {"given": "qwen3"}
    assert "served_model" not in tree_of(text_of(pool(), inference_model("chat")))["pools"]["qwen3"]


def test_several_models_of_a_pool_are_pools_with_a_part_of_the_slots() -> None:
    adapters = [{"name": "adapter-v1", "weight": 10}, {"name": "adapter-v2", "weight": 90}]
    source = [pool(), inference_model("base"), inference_model("adapter", *adapters)]
    pools = tree_of(text_of(*source))["pools"]

    assert {name: (each["served_model"], each["in_flight_max"]) for name, each in pools.items()} == {
        "qwen3": ("base", 32),
        "qwen3-2": ("adapter-v2", 32),
    }
    assert reasons(*source) == [
        "InferencePool qwen3: changed: its engines serve 2 models, each in a pool of its own with in_flight_max 32",
        (
            "spec.targetModels: changed: all requests go to the model with the highest weight; for a split, use two "
            "models"
        ),
    ]


def test_rewrites_become_models() -> None:
    matched = {"matches": [{"model": {"type": "Exact", "value": "chat"}}], "targets": [{"modelRewrite": "qwen3-8b"}]}
    source = [pool(), rewrite(matched, {"targets": [{"modelRewrite": "other"}]})]
    tree = tree_of(text_of(*source))

    assert tree["models"] == {"chat": "qwen3"}
    assert tree["pools"]["qwen3"]["served_model"] == "qwen3-8b"
    assert reasons(*source) == [
        "spec.rules[1]: not carried over: only rules with a model and a target can be carried over"
    ]


def test_criticality_of_models_is_a_class_that_clients_name() -> None:
    names = {"Critical": "interactive", "Standard": None, "Sheddable": "batch"}
    for criticality, name in names.items():
        notes = reasons(pool(), inference_model("m", criticality=criticality))

        assert notes == (
            []
            if name is None
            else [
                f'spec.criticality: changed: requests for "m" must name the class {name} in x-headgate-class',
            ]
        )


def test_objectives_become_classes_in_bands() -> None:
    source = [pool(), objective("chat", priority=10), objective("free", priority=-5), objective("usual")]
    settings = settings_of(converted(text_of(*source)))
    classes = {each.name: each for each in settings.policy.classes}

    assert {name: each.band for name, each in classes.items()} == {
        "chat": 0,
        "interactive": 1,
        "usual": 1,
        "long": 2,
        "free": 3,
        "batch": 4,
    }
    assert [name for name, each in classes.items() if each.accepts_unclassified] == ["interactive", "long"]
    assert classes["free"].optimize_for is OptimizationGoal.COST
    assert [note.partition("changed: ")[2] for note in reasons(*source)] == [
        f"clients name the class {name} in x-headgate-class, instead of an objective in x-gateway-inference-objective"
        for name in ("chat", "free", "usual")
    ]


def test_objective_with_the_name_of_a_default_class_changes_its_band() -> None:
    settings = settings_of(converted(text_of(pool(), objective("batch", priority=3))))
    bands = {each.name: each.band for each in settings.policy.classes}

    assert bands == {"batch": 0, "interactive": 1, "long": 2}


def test_timeouts_apply_to_the_classes_of_objectives_as_well() -> None:
    rule = {"backendRefs": [backend()], "timeouts": {"request": "10m", "backendRequest": "1m30s"}}
    source = [pool(), objective("chat", priority=1), route({**rule, "retry": {"attempts": 2, "codes": [503]}})]
    policy = settings_of(converted(text_of(*source))).policy

    assert {each.total_ns_max for each in policy.classes} == {MINUTE + 30 * SECOND}
    assert policy.retry.attempts_max == 3
    assert [note.partition("over: ")[2] for note in reasons(*source)][-2:] == [
        "Headgate limits each attempt; backendRequest becomes attempt_timeout",
        "has no equivalent",
    ]


def test_models_in_headers_of_routes() -> None:
    rule = {"matches": [by_header("Qwen/Qwen3-8B"), by_header("adapter")], "backendRefs": [backend()]}
    tree = tree_of(text_of(pool(), route(rule)))

    assert tree["models"] == {"Qwen/Qwen3-8B": "qwen3", "adapter": "qwen3-2"}


@pytest.mark.parametrize("extra", [(), (inference_model("chat"),)])
def test_pools_of_one_rule_serve_the_same_model(extra: tuple[dict[str, Any], ...]) -> None:
    rule = {"backendRefs": [backend(weight=9), backend("canary", weight=1), backend("idle", weight=0)]}
    source = [pool(), pool("canary", selector={"matchLabels": {"app": "canary"}}), pool("idle"), *extra, route(rule)]

    assert tree_of(text_of(*source))["models"] == {"chat" if extra else "qwen3": ["qwen3", "canary"], "idle": "idle"}


def test_other_parts_of_routes_are_reported() -> None:
    match = {"path": {"value": "/team"}, "headers": [{"name": "x-team", "value": "a"}], "method": "POST"}
    rule = {
        "matches": [match],
        "filters": [{"type": "RequestMirror"}],
        "backendRefs": [{"name": "web", "port": 80}, backend("gone"), backend()],
        "timeouts": {"request": "0s"},
    }
    source = [pool(), route(rule, hostnames=["llm.example.com"]), manifest("Gateway", "gw", "v1")]

    assert [note.partition(": ")[2] for note in reasons(*source)] == [
        "changed: clients use /v1 instead of /team/v1",
        "not carried over: Headgate selects engines by the model in the request",
        "not carried over: has no equivalent",
        "not carried over: Headgate sends its own paths and headers to engines",
        "not carried over: only InferencePools can be carried over",
        'not carried over: the InferencePool "gone" is not in the source',
        "changed: 0s turns it off; attempt_timeout of the classes applies",
        "changed: Headgate serves all host names",
        "not carried over: it stays in the cluster as it is",
    ]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({**pool(), "metadata": {}}, "source:3: metadata.name: is not a valid Kubernetes name; correct it"),
        ({**pool(), "metadata": {"name": "a b"}}, "source:4: metadata.name: is not a valid Kubernetes name"),
        ({**pool(), "spec": [1]}, "source:6: spec: must be a mapping of settings"),
        (pool(selector={}), "source:7: spec.selector: missing; set it, or remove the InferencePool"),
        (pool(selector={"app": ["a"]}), "source:8: spec.selector.app: must be a single value"),
        (pool(targetPorts=[]), "source:11: spec.targetPorts: missing; set it, or remove the InferencePool"),
        (pool(targetPorts=[{"number": "x"}]), "source:12: spec.targetPorts[0].number: must be a number"),
        (
            pool(targetPorts=[{"number": 70_000}]),
            "source: has no engine that Headgate can use: it needs a DNS name and a port",
        ),
        (objective("a", priority="high"), "source:9: spec.priority: must be a whole number"),
        (route({"timeouts": {"request": "soon"}}), "source:9: spec.rules[0].timeouts.request: must be a duration"),
        (inference_model(""), "source:7: spec.modelName: missing; set it, or remove the InferenceModel"),
        ({"apiVersion": "v1", "kind": "List", "items": [1]}, "source:4: items[0]: must be a mapping of settings"),
    ],
)
def test_invalid_source_is_a_one_line_error(source: dict[str, Any], message: str) -> None:
    if source["kind"] == "InferenceModel":
        source["metadata"]["name"] = "a"
    said = error_of(text_of(source), source_format="inferencepool")

    assert said.startswith(message)
    assert "\n" not in said


def test_nested_lists_are_a_one_line_error() -> None:
    text = '{"kind": "List", "items": [' * 60

    assert error_of(text, source_format="inferencepool").startswith("source: has more than 100 nested levels")
