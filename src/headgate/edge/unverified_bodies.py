"""Holds callers whose tokens cannot be verified until the issuer's keys have been read again.

Until then, their connections are not read. The bytes that have already arrived are limited in total, and for each
client address to a share of that (`tenant_shares`).
"""

from functools import partial

from headgate.edge.auth import CallerKeys
from headgate.edge.body_bytes import BodyBytes, BodyClaim
from headgate.edge.client import Client
from headgate.edge.parsed_request import authenticate_again, unverified_bodies_rejection
from headgate.model.units import TenantId
from headgate.ports.identity import UnknownTokenKey


class UnverifiedBodies:
    __slots__ = ("_bodies",)

    def __init__(self) -> None:
        self._bodies = BodyBytes()
        """Client addresses take the place of tenants."""

    @property
    def total(self) -> int:
        """Total size of the bodies of these callers, in bytes."""
        return self._bodies.total

    async def authenticate(
        self, client: Client, keys: CallerKeys, unknown: UnknownTokenKey, bytes_max: int
    ) -> TenantId:
        """Returns the caller's tenant once the keys have been read. Raises `EdgeRejection`."""
        body = self._bodies.open(TenantId(client.peer))
        try:
            client.hold_body(partial(_reserve, body, bytes_max))
            if not client.body_rejected:
                tenant = await authenticate_again(client, keys, unknown)
                if not client.body_rejected:
                    return tenant
            raise unverified_bodies_rejection(self.total)
        finally:
            body.close()
            client.resume_body()


def _reserve(body: BodyClaim, bytes_max: int, size: int) -> bool:
    return body.grow(size, bytes_max)
