"""Metrics for token issuers: the age of their keys, and the accepted and rejected tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headgate.ports.identity import IssuerStats
from headgate.telemetry.exposition import MetricFamily, family


@dataclass(frozen=True, slots=True)
class IdentityStats:
    issuers: Sequence[tuple[IssuerStats, int]]
    """Each issuer with the number of requests that its tokens authenticated."""
    rejected: Mapping[str, int]
    """Number of rejected tokens by reason, for all reasons."""


def identity_metrics(identity: IdentityStats) -> Iterator[MetricFamily]:
    accepted, keys = family("headgate_tokens_accepted_total"), family("headgate_issuer_keys")
    age, failures = family("headgate_issuer_keys_age_seconds"), family("headgate_issuer_key_read_failures_total")
    for issuer, count in identity.issuers:
        accepted.add((issuer.name,), count)
        keys.add((issuer.name,), issuer.keys)
        age.add((issuer.name,), issuer.age_s)
        failures.add((issuer.name,), issuer.failures)
    rejected = family("headgate_tokens_rejected_total")
    for reason, count in identity.rejected.items():
        rejected.add((reason,), count)
    yield from (accepted, rejected, keys, age, failures)
