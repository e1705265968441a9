"""Known attacks. Each has succeeded against a real gateway.

An attack returns None if the gateway withstood it, or a description of its effect. `__main__` also measures another
tenant's latency and the duration of event loop iterations; no attack may affect either.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from bench.attack.attacked_gateway import ATTACKER, LIMITED, VICTIM, AttackedGateway
from bench.attack.handshakes import hostile_first_bytes, slow_handshakes, thousands_of_open_handshakes
from bench.attack.hostile_engine import BEHAVIOURS

Attack = Callable[[AttackedGateway], Awaitable[str | None]]
_GROWTH_MIB_MAX: Final = 150.0
_HEAD: Final = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
_CHUNKED: Final = b"transfer-encoding: chunked\r\n\r\n"
_KEY: Final = b"authorization: Bearer " + ATTACKER.encode() + b"\r\n"
_SECONDS_MAX: Final = 20.0


async def send(
    stage: AttackedGateway, first: bytes, piece: bytes = b"", times: int = 0, *, admin: bool = False
) -> bytes:
    """Send raw bytes, then the same piece repeatedly. Return the start of the response."""
    parts = urlsplit(stage.gateway.admin_url if admin else stage.gateway.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(first)
            for _ in range(times):
                writer.write(piece)
                await writer.drain()
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_SECONDS_MAX):
                return await reader.read(65_536)
        return b""
    finally:
        writer.close()


# Bytes from clients


async def endless_trailer_without_a_key(stage: AttackedGateway) -> str | None:
    body = b"100000\r\n" + b"a" * 0x100000 + b"\r\n"
    answer = await send(stage, _HEAD + _CHUNKED + body * 4 + b"0\r\nx: ", b"b" * 262_144, 240)
    return None if answer[9:12] in (b"400", b"401", b"431", b"") else f"unexpected response {answer[:40]!r}"


async def endless_trailer_with_a_key(stage: AttackedGateway) -> str | None:
    body = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    answer = await send(stage, _HEAD + _KEY + _CHUNKED + body * 8 + b"0\r\nx: ", b"b" * 262_144, 240)
    return None if answer[9:12] in (b"400", b"431", b"") else f"unexpected response {answer[:40]!r}"


async def tiny_chunks(stage: AttackedGateway) -> str | None:
    await send(stage, _HEAD + _CHUNKED, b"1\r\na\r\n" * 43_690, 240)
    await send(stage, _HEAD + _KEY + _CHUNKED, b"1\r\na\r\n" * 43_690, 240)
    return None


async def tiny_chunks_held_in_memory(stage: AttackedGateway) -> str | None:
    """Send bodies in two-byte chunks. Memory may grow only in proportion to the bytes counted."""
    before, size = stage.resident_mib(), 200_000
    piece = b"2\r\naa\r\n" * (size // 2)
    senders = [asyncio.create_task(send(stage, _HEAD + _KEY + _CHUNKED + piece)) for _ in range(40)]
    await asyncio.sleep(4)
    grown, counted = stage.resident_mib() - before, 40 * size / 2**20
    for each in senders:
        each.cancel()
    await asyncio.gather(*senders, return_exceptions=True)
    return None if grown <= 1.5 * counted + 20 else f"{grown:.0f} MiB resident for {counted:.0f} MiB of bodies"


async def long_names(stage: AttackedGateway) -> str | None:
    before = stage.resident_mib()
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    head = _HEAD + _KEY + b"x-headgate-class: " + b"z" * 60_000 + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
    for _ in range(40):
        await asyncio.gather(*(send(stage, head + body) for _ in range(10)))
    grown = stage.resident_mib() - before
    return None if grown < 60 else f"memory grew by {grown:.0f} MiB"


async def forged_log_lines(stage: AttackedGateway) -> str | None:
    name = 'x"\n2026-01-01T00:00:00.000+00:00 CRITICAL headgate: FORGED \x1b[2J\u2028'
    await stage.chat(ATTACKER, model=name)
    await stage.chat(ATTACKER, service_tier=name)
    log = stage.process.log_path.read_text(errors="replace")
    forged = "\n2026-01-01" in log or "\x1b" in log or "\u2028" in log
    return "a model name appears unescaped in the log" if forged else None


async def dns_rebinding(stage: AttackedGateway) -> str | None:
    for path in (b"/status", b"/metrics", b"/requests", b"/verdict", b"/console/", b"/ready"):
        head = b"GET %b HTTP/1.1\r\nhost: attacker.example:9090\r\nconnection: close\r\n\r\n" % path
        answer = await send(stage, head, admin=True)
        if answer[9:12] != b"421":
            return f"{path.decode()}: unexpected response {answer[:40]!r}"
    return None


async def large_bodies_of_a_tenant_at_its_limit(stage: AttackedGateway) -> str | None:
    part = b'{"role":"user","content":[{"type":"image_url","x":[{},{},{},{},{},{},{},{},{},{}]}]}'
    body = b'{"model":"m","messages":[' + b",".join([part] * 3_000) + b"]}"
    head = _HEAD + b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n" % (LIMITED.encode(), len(body))
    flood = [asyncio.create_task(_repeat(stage, head + body, 20)) for _ in range(16)]
    await asyncio.sleep(1)
    words = "word " * 400_000
    reply = await stage.chat(VICTIM, messages=[{"role": "user", "content": words}])
    for each in flood:
        each.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    held = reply.status == 200 and reply.took_s < 5
    return None if held else f"another tenant's 2 MB prompt: {reply.status} after {reply.took_s:.1f} s"


async def _repeat(stage: AttackedGateway, request: bytes, times: int) -> None:
    for _ in range(times):
        await send(stage, request)


# Cost and learning


async def many_prompts_as_one(stage: AttackedGateway) -> str | None:
    reply = await stage.chat(ATTACKER, path="/v1/completions", prompt=["hi"] * 400, max_tokens=8)
    return None if reply.status != 200 else "400 prompts passed a limit of n = 4"


async def false_usage(stage: AttackedGateway) -> str | None:
    """Let an engine report a billion prompt tokens. Estimates for other tenants must not change."""
    for _ in range(5):
        await stage.chat(ATTACKER, "false_usage")
    reply = await stage.chat(VICTIM, messages=[{"role": "user", "content": "word " * 400}])
    return None if reply.status == 200 else f"another tenant's request: {reply.status} {reply.message}"


async def unmeasured_tools(stage: AttackedGateway) -> str | None:
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 200_000, "parameters": {}}}
    for _ in range(12):
        await stage.chat(ATTACKER, "honest", tools=[tool])
    reply = await stage.chat(VICTIM, messages=[{"role": "user", "content": "word " * 400}])
    return None if reply.status == 200 else f"another tenant's request: {reply.status} {reply.message}"


async def free_by_deadline(stage: AttackedGateway) -> str | None:
    before = await _spent(stage)
    # The response takes at least a second.
    deadline = {"x-headgate-deadline-ms": "900"}
    reply = await stage.chat(ATTACKER, "paced", stream=True, max_tokens=100, headers=deadline)
    tokens = reply.content.count(b'"delta"')
    await asyncio.sleep(0.5)
    spent = await _spent(stage) - before
    return (
        None if tokens and spent >= 0.001 * tokens else f"{tokens} tokens were delivered but only ${spent} was charged"
    )


async def _spent(stage: AttackedGateway) -> float:
    headers = {"authorization": f"Bearer {ATTACKER}"}
    async with stage.gateway.http.get(stage.gateway.url + "/v1/usage", headers=headers) as answer:
        found = json.loads(await answer.read())
    return sum(float(each["spent_usd"]) for each in found["budgets"])


# Fault attribution


async def poison_requests(stage: AttackedGateway) -> str | None:
    """Send requests that make every engine respond with 500. They must not eject engines that serve other tenants."""
    others = [asyncio.create_task(stage.send_victim_requests()) for _ in range(3)]
    try:
        for round_number in range(10):
            asked = (stage.chat(ATTACKER, "failure", seed=100 * round_number + each) for each in range(30))
            await asyncio.gather(*asked)
            states = [each["state"] for each in (await stage.status())["endpoints"]]
            if states.count("ready") < len(states):
                return f"the endpoint states are {states}"
            await asyncio.sleep(0.5)
    finally:
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    return None


# Bytes from engines


def engine_behaviour(mode: str, *, stream: bool) -> Attack:
    async def attack(stage: AttackedGateway) -> str | None:
        before = stage.resident_mib()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS_MAX):
                await stage.chat(ATTACKER, mode, stream=stream)
        grown = stage.resident_mib() - before
        return None if grown < _GROWTH_MIB_MAX else f"memory grew by {grown:.0f} MiB"

    attack.__name__ = f"engine_{mode}"
    return attack


ATTACKS: Final[tuple[Attack, ...]] = (
    endless_trailer_without_a_key,
    endless_trailer_with_a_key,
    tiny_chunks,
    tiny_chunks_held_in_memory,
    long_names,
    forged_log_lines,
    dns_rebinding,
    large_bodies_of_a_tenant_at_its_limit,
    many_prompts_as_one,
    false_usage,
    unmeasured_tools,
    free_by_deadline,
    poison_requests,
    hostile_first_bytes,
    slow_handshakes,
    thousands_of_open_handshakes,
    *(
        engine_behaviour(mode, stream=mode not in ("endless_trailer", "many_trailers", "usage_bomb", "long_head"))
        for mode in BEHAVIOURS
        if mode not in ("ok", "paced", "false_usage", "honest", "failure")
    ),
)
