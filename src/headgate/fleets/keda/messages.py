"""What do KEDA and its scaler say to each other? The messages of externalscaler.proto, read and written."""

from dataclasses import dataclass, field

from headgate.fleets.keda.protobuf import content, double_field, fields, message_field, number_field, text, text_field


@dataclass(frozen=True, slots=True)
class ScaledObjectRef:
    """For whom KEDA asks, and what the trigger's `metadata` says."""

    name: str = ""
    namespace: str = ""
    metadata: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class MetricsRequest:
    ref: ScaledObjectRef = field(default_factory=ScaledObjectRef)
    metric: str = ""


@dataclass(frozen=True, slots=True)
class Activity:
    active: bool


@dataclass(frozen=True, slots=True)
class MetricSpec:
    metric: str
    target: int


@dataclass(frozen=True, slots=True)
class MetricValue:
    metric: str
    value: int


def read_ref(data: bytes) -> ScaledObjectRef:
    name, namespace, metadata = "", "", dict[str, str]()
    for number, value in fields(data):
        match number:
            case 1:
                name = text(value)
            case 2:
                namespace = text(value)
            case 3:
                entry = {key: text(each) for key, each in fields(content(value)) if key in (1, 2)}
                metadata[entry.get(1, "")] = entry.get(2, "")
            case _:
                pass  # Of a later version of the interface.
    return ScaledObjectRef(name, namespace, metadata)


def read_metrics_request(data: bytes) -> MetricsRequest:
    ref, metric = ScaledObjectRef(), ""
    for number, value in fields(data):
        match number:
            case 1:
                ref = read_ref(content(value))
            case 2:
                metric = text(value)
            case _:
                pass  # As above.
    return MetricsRequest(ref, metric)


def write_activity(activity: Activity) -> bytes:
    return number_field(1, int(activity.active))


def write_spec(spec: MetricSpec) -> bytes:
    """A list of one. The number stands in both fields: KEDA before 2.11 knows only the whole one."""
    return message_field(1, text_field(1, spec.metric) + number_field(2, spec.target) + double_field(3, spec.target))


def write_value(value: MetricValue) -> bytes:
    return message_field(1, text_field(1, value.metric) + number_field(2, value.value) + double_field(3, value.value))
