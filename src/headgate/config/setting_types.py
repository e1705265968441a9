"""Setting types: how their text is parsed and which values are valid.

`reads` selects a parser in quantities.py. `next` is the hint shown if the setting is missing.
"""

from typing import Annotated, Literal

from msgspec import Meta

from headgate.model.units import MILLISECOND

KIB = 1024
MIB = 1024 * KIB
DEGRADATION_LEVELS = 6
"""Number of degradation levels above level 0. At level 0, nothing is degraded."""
UNLIMITED = "unlimited"
"""Value that removes a cap. An empty value would mean that the cap is omitted, and `none` is a reasoning effort."""
PPM_PER_PERCENT = 10_000
"""Parts per million per percent."""
PRESSURE_PER_PERCENT = 10
"""The core's pressure units per percent."""

AddressText = Annotated[tuple[str, int], Meta(extra={"reads": "address"})]
PositiveDuration = Annotated[int, Meta(ge=MILLISECOND, extra={"reads": "duration"})]
DurationOrZero = Annotated[int, Meta(ge=0, extra={"reads": "duration"})]
DurationTarget = PositiveDuration | Literal["unlimited"]
ShortDuration = Annotated[int, Meta(ge=0, extra={"reads": "fine"})]
StepDuration = Annotated[int, Meta(ge=1_000_000, extra={"reads": "fine"})]
Bytes = Annotated[int, Meta(ge=1024, extra={"reads": "size"})]
StorageBytes = Annotated[int, Meta(ge=16 * MIB, extra={"reads": "size"})]
"""Storage limit.

It must be large enough for several spool files, because the oldest file is deleted when the limit is reached.
"""
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Percent = Annotated[int, Meta(ge=0, le=100)]
ObjectivePercent = Annotated[float, Meta(ge=50.0, le=99.999)]
"""Percentage of requests that must meet a target."""
LargePercent = Annotated[int, Meta(ge=1, le=1_000)]
"""Percentage that may exceed 100."""
LargePercentCap = LargePercent | Literal["unlimited"]
HistorySize = Annotated[int, Meta(ge=10, le=100_000)]
PositiveCap = Positive | Literal["unlimited"]
CountCap = Count | Literal["unlimited"]
Secret = Annotated[str, Meta(extra={"secret": True})]
"""Text that is never quoted in a message."""
PortRange = Annotated[tuple[int, int], Meta(extra={"reads": "range"})]
Dollars = Annotated[float, Meta(ge=0.0)]
Usd = Annotated[int, Meta(ge=0, le=10**18, extra={"reads": "usd"})]
"""Dollars in the file, converted to billionths of a dollar."""
Days = Annotated[int, Meta(ge=1, le=36_500, extra={"reads": "days"})]
Day = Annotated[int, Meta(ge=0, extra={"reads": "day"})]
Timestamp = Annotated[int, Meta(extra={"reads": "moment", "next": "set a timestamp such as 2026-11-27T08:00:00+01:00"})]

# Required settings have `next`.
EngineName = Annotated[str, Meta(extra={"next": "set the kind of engine, such as vllm or llamacpp"})]
Url = Annotated[str, Meta(extra={"next": "set the URL of the engine, such as http://127.0.0.1:8081"})]
StoreUrl = Annotated[
    str, Meta(extra={"secret": True, "next": "set the URL of the cell's Redis or Valkey, such as redis://cache:6379"})
]
DatabaseUrl = Annotated[
    str, Meta(extra={"secret": True, "next": "set the URL of the database, such as postgresql://headgate@db/headgate"})
]
WebhookUrl = Annotated[
    str,
    Meta(extra={"secret": True, "next": "set the URL for notifications, such as https://hooks.example.com/budgets"}),
]
SpoolDirectory = Annotated[
    str,
    Meta(
        extra={
            "next": "set a persistent directory, such as /var/lib/headgate/spool; "
            "rows wait there while the database is unreachable"
        }
    ),
]
CollectorUrl = Annotated[
    str,
    Meta(extra={"next": "set the OTLP/HTTP URL of an OpenTelemetry collector, such as http://collector:4318"}),
]
AuditDirectory = Annotated[str, Meta(extra={"next": "set a persistent directory, such as /var/lib/headgate/audit"})]
RecordsDirectory = Annotated[str, Meta(extra={"next": "set a persistent directory, such as /var/lib/headgate/records"})]
BudgetUsd = Annotated[
    int,
    Meta(ge=1, le=10**18, extra={"reads": "usd", "next": "set the budget of the period in dollars, such as 100"}),
]
AdminKeyHash = Annotated[
    str, Meta(extra={"secret": True, "next": "set the hash of the operator's key, from `headgate keys hash`"})
]
CertificateFile = Annotated[
    str, Meta(extra={"next": "set the PEM file with the listener's certificate, such as /etc/headgate/tls/tls.crt"})
]
CertificateKeyFile = Annotated[
    str, Meta(extra={"next": "set the PEM file with the certificate's private key, such as /etc/headgate/tls/tls.key"})
]
OperatorRoles = Annotated[
    dict[str, list[str]],
    Meta(extra={"next": "list the claim's values for each role, such as admin: [platform-team]"}),
]
