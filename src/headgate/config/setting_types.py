"""Types of the settings in the file: how the text of each is read, and which values are accepted.

quantities.py reads the units that `reads` names; a message about a missing setting ends with its `next`.
"""

from typing import Annotated, Literal

from msgspec import Meta

from headgate.model.units import MILLISECOND

KIB = 1024
MIB = 1024 * KIB
LEVELS = 6
"""How many levels the ladder has above the one at which nothing is given up."""
UNLIMITED = "unlimited"
"""How the file lifts a cap. An empty value means one that is left out, and `none` is a reasoning effort."""
THOUSANDTHS = 10
"""To the percent; the core has pressure in them."""

AddressText = Annotated[tuple[str, int], Meta(extra={"reads": "address"})]
Lasting = Annotated[int, Meta(ge=MILLISECOND, extra={"reads": "duration"})]
LastingOrNone = Annotated[int, Meta(ge=0, extra={"reads": "duration"})]
LastingTarget = Lasting | Literal["unlimited"]
Fine = Annotated[int, Meta(ge=0, extra={"reads": "fine"})]
FineStep = Annotated[int, Meta(ge=1_000_000, extra={"reads": "fine"})]
Bytes = Annotated[int, Meta(ge=1024, extra={"reads": "size"})]
SpoolBytes = Annotated[int, Meta(ge=16 * MIB, extra={"reads": "size"})]
"""A few files of the spool, of which the oldest goes when it is full."""
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Objective = Annotated[float, Meta(ge=50.0, le=99.999)]
"""How many of a hundred must keep a target."""
Part = Annotated[int, Meta(ge=1, le=1_000)]
"""In percent, where more than the whole may be meant."""
Remembered = Annotated[int, Meta(ge=10, le=100_000)]
PositiveCap = Positive | Literal["unlimited"]
CountCap = Count | Literal["unlimited"]
Secret = Annotated[str, Meta(extra={"secret": True})]
"""Never shown, not even in a message about it."""
PortRange = Annotated[tuple[int, int], Meta(extra={"reads": "range"})]
Dollars = Annotated[float, Meta(ge=0.0)]
Usd = Annotated[int, Meta(ge=0, le=10**18, extra={"reads": "usd"})]
"""Written in dollars; billionths of one here."""
Days = Annotated[int, Meta(ge=1, le=36_500, extra={"reads": "days"})]
Day = Annotated[int, Meta(ge=0, extra={"reads": "day"})]
Moment = Annotated[int, Meta(extra={"reads": "moment", "next": "write a moment such as 2026-11-27T08:00:00+01:00"})]

# What must be there says in `next` what to write where it is missing.
EngineName = Annotated[str, Meta(extra={"next": "name the engine that its endpoints run, such as vllm or llamacpp"})]
Url = Annotated[str, Meta(extra={"next": "write where the engine listens, such as http://127.0.0.1:8081"})]
StoreUrl = Annotated[
    str, Meta(extra={"secret": True, "next": "write where the cell's Redis or Valkey is, such as redis://cache:6379"})
]
DatabaseUrl = Annotated[
    str, Meta(extra={"secret": True, "next": "write where the database is, such as postgresql://headgate@db/headgate"})
]
Webhook = Annotated[
    str,
    Meta(extra={"secret": True, "next": "write where notices are posted, such as https://hooks.example.com/budgets"}),
]
Spool = Annotated[
    str,
    Meta(
        extra={
            "next": "name a folder that outlives the process, such as /var/lib/headgate/spool; "
            "rows wait there while the database is away"
        }
    ),
]
Collector = Annotated[
    str,
    Meta(extra={"next": "write where an OpenTelemetry collector takes traces by HTTP, such as http://collector:4318"}),
]
RecordsFolder = Annotated[
    str, Meta(extra={"next": "name a folder that outlives the process, such as /var/lib/headgate/records"})
]
BudgetUsd = Annotated[
    int,
    Meta(
        ge=1, le=10**18, extra={"reads": "usd", "next": "say how many dollars may be spent in the period, such as 100"}
    ),
]
AdminKey = Annotated[
    str, Meta(extra={"secret": True, "next": "write what `headgate keys hash` makes of the operator's key"})
]
Permissions = Annotated[list[str], Meta(extra={"next": "list what its holder may do: read, keys, operate"})]
