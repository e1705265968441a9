"""JSON schemas for the manifest kinds that are not part of Kubernetes.

They follow the public documentation of KEDA, the Prometheus operator, the Gateway API and Kustomize. They contain only
the fields that we use and closely related ones, so that misspelt fields are caught. KEDA copies a ScaledObject's
`behavior` unchanged into a HorizontalPodAutoscaler, so a test checks it against the schema of that kind.
"""

from typing import Any

Schema = dict[str, Any]


def an_object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def a_list(of: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": of}


TEXT: Schema = {"type": "string", "minLength": 1}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT: Schema = {"type": "integer", "minimum": 0}
POSITIVE: Schema = {"type": "integer", "minimum": 1}
LASTING: Schema = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}
FLAG: Schema = {"type": "boolean"}
METADATA = an_object(("name",), name=TEXT, namespace=TEXT, labels=TEXTS, annotations=TEXTS)


def a_kind(api_version: str, kind: str, spec: Schema) -> Schema:
    head = {"apiVersion": {"const": api_version}, "kind": {"const": kind}}
    return an_object(("apiVersion", "kind", "metadata", "spec"), metadata=METADATA, spec=spec, **head)


SCALED_OBJECT = a_kind(
    "keda.sh/v1alpha1",
    "ScaledObject",
    an_object(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=an_object(("name",), name=TEXT, kind=TEXT, apiVersion=TEXT, envSourceContainerName=TEXT),
        pollingInterval=POSITIVE,
        cooldownPeriod=COUNT,
        initialCooldownPeriod=COUNT,
        idleReplicaCount=COUNT,
        minReplicaCount=COUNT,
        maxReplicaCount=POSITIVE,
        fallback=an_object(
            ("failureThreshold", "replicas"),
            failureThreshold=COUNT,
            replicas=COUNT,
            behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
        ),
        advanced=an_object(
            restoreToOriginalReplicaCount=FLAG,
            horizontalPodAutoscalerConfig=an_object(name=TEXT, behavior={"type": "object"}),
        ),
        triggers=a_list(
            an_object(
                ("type", "metadata"),
                type={"enum": ["external", "external-push", "prometheus"]},
                name=TEXT,
                metricType={"enum": ["AverageValue", "Value"]},
                metadata={**TEXTS, "required": ["scalerAddress"]},
                useCachedMetrics=FLAG,
                authenticationRef=an_object(("name",), name=TEXT, kind=TEXT),
            )
        ),
    ),
)

SERVICE_MONITOR = a_kind(
    "monitoring.coreos.com/v1",
    "ServiceMonitor",
    an_object(
        ("selector", "endpoints"),
        jobLabel=TEXT,
        selector=an_object(("matchLabels",), matchLabels=TEXTS),
        namespaceSelector=an_object(any=FLAG, matchNames=a_list(TEXT)),
        endpoints=a_list(
            an_object(
                ("port", "path"),
                port=TEXT,
                path={"type": "string", "pattern": "^/"},
                interval=LASTING,
                scrapeTimeout=LASTING,
                scheme={"enum": ["http", "https"]},
                tlsConfig=an_object(
                    ca=an_object(secret=an_object(("name", "key"), name=TEXT, key=TEXT)), serverName=TEXT
                ),
                honorLabels=FLAG,
            )
        ),
    ),
)

KUSTOMIZATION = an_object(
    ("apiVersion", "kind", "resources"),
    apiVersion={"const": "kustomize.config.k8s.io/v1beta1"},
    kind={"const": "Kustomization"},
    namespace=TEXT,
    resources=a_list(TEXT),
    configMapGenerator=a_list(an_object(("name", "files"), name=TEXT, files=a_list(TEXT))),
    generatorOptions=an_object(disableNameSuffixHash=FLAG),
    images=a_list(an_object(("name",), name=TEXT, newName=TEXT, newTag=TEXT, digest=TEXT)),
)

A_LAYER = an_object(
    ("apiVersion", "kind", "resources", "patches"),
    apiVersion={"const": "kustomize.config.k8s.io/v1beta1"},
    kind={"const": "Kustomization"},
    namespace=TEXT,
    resources=a_list(TEXT),
    patches=a_list(an_object(("path",), path=TEXT)),
    configMapGenerator=a_list(
        an_object(("name", "files"), name=TEXT, behavior={"enum": ["create", "replace", "merge"]}, files=a_list(TEXT))
    ),
    generatorOptions=an_object(disableNameSuffixHash=FLAG),
)
"""Schema for a kustomization that patches another one."""

SCALED_BY_PROMETHEUS = an_object(
    ("type", "metadata"),
    type={"const": "prometheus"},
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=an_object(
        ("serverAddress", "query", "threshold"),
        serverAddress=TEXT,
        query=TEXT,
        threshold={"type": "string", "pattern": "^[0-9.]+$"},
        ignoreNullValues={"enum": ["true", "false"]},
    ),
)
"""Schema for one Prometheus trigger in a ScaledObject."""

_ROUTE_TIMEOUT: Schema = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
_PREFIX = an_object(("type", "value"), type={"const": "PathPrefix"}, value={"type": "string", "pattern": "^/"})

HTTP_ROUTE = a_kind(
    "gateway.networking.k8s.io/v1",
    "HTTPRoute",
    an_object(
        ("parentRefs", "rules"),
        parentRefs=a_list(
            an_object(("name",), group=TEXT, kind=TEXT, name=TEXT, namespace=TEXT, sectionName=TEXT, port=POSITIVE)
        ),
        hostnames=a_list(TEXT),
        rules=a_list(
            an_object(
                ("matches", "backendRefs"),
                matches=a_list(an_object(("path",), path=_PREFIX)),
                timeouts=an_object(request=_ROUTE_TIMEOUT, backendRequest=_ROUTE_TIMEOUT),
                backendRefs=a_list(an_object(("name", "port"), name=TEXT, port=POSITIVE)),
            )
        ),
    ),
)

_REFERENCE = an_object(("group", "kind", "name"), group={"const": ""}, kind=TEXT, name=TEXT, sectionName=TEXT)

BACKEND_TLS_POLICY = a_kind(
    "gateway.networking.k8s.io/v1",
    "BackendTLSPolicy",
    an_object(
        ("targetRefs", "validation"),
        targetRefs=a_list(_REFERENCE),
        validation=an_object(("caCertificateRefs", "hostname"), caCertificateRefs=a_list(_REFERENCE), hostname=TEXT),
    ),
)
