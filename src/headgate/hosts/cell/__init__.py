"""Cells: gateways that share one queue and one scheduler, and survive the loss of any process.

Members, scheduler and election are pure: they receive bytes, events and the time, and return bytes and commands.
`docs/project/cell-protocol.md` describes the protocol.
"""
