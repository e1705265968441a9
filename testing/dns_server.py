"""A DNS server on a loopback port, over UDP and TCP, with records and faults set by the test."""

import asyncio
import ipaddress
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from testing.ports import free_port

A, AAAA, SRV = 1, 28, 33
UDP_BYTES_MAX = 4096


@dataclass
class DnsServer:
    """A DNS server. `records` maps a name and record type to addresses, or to (priority, port, target) for SRV."""

    records: dict[tuple[str, int], list] = field(default_factory=dict)
    beside: dict[str, list[str]] = field(default_factory=dict)
    """Additional addresses in each response, by name."""
    error: int | None = None
    silent: bool = False
    garbles: bool = False
    truncates: bool = False
    """Whether responses over TCP are also marked as truncated."""
    asked: list[tuple[str, int, str]] = field(default_factory=list)
    """Name, record type and transport of each query."""
    port: int = 0
    before: Callable[[bytes], list[bytes]] = lambda _: []
    """Returns datagrams, built from the query, to send before the response."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["DnsServer"]:
        loop = asyncio.get_running_loop()
        # A port that is free for TCP may be in use for UDP.
        self.port = free_port()
        over_tcp = await asyncio.start_server(self._tcp, "127.0.0.1", self.port)
        over_udp, _ = await loop.create_datagram_endpoint(lambda: _Udp(self), local_addr=("127.0.0.1", self.port))
        try:
            yield self
        finally:
            over_udp.close()
            over_tcp.close()

    def reply(self, packet: bytes, over: str) -> bytes | None:
        (number,) = struct.unpack_from("!H", packet)
        name, at = _read_name(packet, 12)
        (kind,) = struct.unpack_from("!H", packet, at)
        self.asked.append((name, kind, over))
        if self.silent:
            return None
        if self.garbles:
            return packet[:2] + b"\x80\x00" + b"\x00\x01" * 4 + b"\xc0\x0c" * 10
        question = packet[12 : at + 4]
        found = self.records.get((name, kind))
        known = any(each == name for each, _ in self.records)
        answers = [_record(kind, value) for value in found or []]
        beside = [_record(A, address, owner) for owner, all_ in self.beside.items() for address in all_]
        code = self.error if self.error is not None else 0 if known else 3
        head = struct.pack("!6H", number, 0x8180 | code, 1, len(answers), 0, len(beside))
        whole = head + question + b"".join(answers) + b"".join(beside)
        if over == "udp" and len(whole) > UDP_BYTES_MAX:
            return struct.pack("!6H", number, 0x8380, 1, 0, 0, 0) + question
        if over == "tcp" and self.truncates:
            return struct.pack("!6H", number, 0x8380, 1, 0, 0, 0) + question
        return whole

    async def _tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        said = self.reply(await reader.readexactly(length), "tcp")
        if said is not None:
            writer.write(struct.pack("!H", len(said)) + said)
        writer.close()


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: object) -> None:
        for datagram in self._server.before(data):
            self._transport.sendto(datagram, addr)  # type: ignore[attr-defined]
        said = self._server.reply(data, "udp")
        if said is not None:
            self._transport.sendto(said, addr)  # type: ignore[attr-defined]


def _record(kind: int, value: object, owner: str = "") -> bytes:
    """Encode a record. Its owner is `owner` or, by default, the queried name at byte 12."""
    head = (_name(owner) if owner else b"\xc0\x0c") + struct.pack("!2HI", kind, 1, 5)
    if kind == SRV:
        priority, port, target = value
        data = struct.pack("!3H", priority, 10, port) + _name(target)
    else:
        data = ipaddress.ip_address(value).packed
    return head + struct.pack("!H", len(data)) + data


def _name(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label) + b"\0"


def _read_name(packet: bytes, at: int) -> tuple[str, int]:
    labels = []
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    return ".".join(labels).lower(), at + 1
