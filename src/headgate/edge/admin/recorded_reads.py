"""Records reads of tenants' data before the response is sent."""

import time

from headgate.edge.admin.operator_auth import AdminRejection
from headgate.edge.client import Client
from headgate.ports.admin_roles import Operator
from headgate.ports.read_audit import AuditUnavailable, ReadAudit, ReadEntry


async def record_read(
    reads: ReadAudit, client: Client, operator: Operator, *, status: int, tenant: str = "", target: str = ""
) -> None:
    """Records one read. Raises `AdminRejection` if that is not possible, because no read may go unrecorded."""
    route = client.path.decode("latin-1")
    entry = ReadEntry(time.time_ns(), operator.name, client.peer, route, tenant, target, status)
    try:
        await reads.record(entry)
    except AuditUnavailable as problem:
        message = f"the read cannot be recorded: {problem}; make the directory writable, or remove audit and restart"
        raise AdminRejection(503, "audit_unavailable", message) from None
