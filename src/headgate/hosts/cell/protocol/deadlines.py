"""Remaining deadlines of a request that has already waited elsewhere."""

from dataclasses import replace

from headgate.model.ticket import Ticket
from headgate.model.units import Duration


def with_elapsed(ticket: Ticket, passed_ns: Duration) -> Ticket:
    """Returns the ticket with its deadlines reduced by the time that has passed."""
    first, whole = ticket.first_token_ns_left, ticket.completion_ns_left
    if not passed_ns or (first is None and whole is None):
        return ticket
    return replace(
        ticket,
        first_token_ns_left=None if first is None else Duration(max(0, first - passed_ns)),
        completion_ns_left=None if whole is None else Duration(max(0, whole - passed_ns)),
    )
