"""Callers whose tokens cannot be verified yet cannot fill the gateway's memory with their bodies."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fuzz.pipes import Pipe
from headgate.edge.admin.api import BODY_BYTES_MAX
from headgate.edge.admin.app import AdminApp
from headgate.edge.client import Client
from headgate.edge.connections import Connections
from headgate.edge.options import MIB, EdgeLimits
from headgate.telemetry.audit.read_log import ReadLog
from testing.fake_engine import FakeEngine
from testing.fake_issuer import AUDIENCE, FakeIssuer, fake_issuer, signing_key, token_of
from testing.gateway import GatewayInLoop, a_config, gateway_in_loop
from tests.security.raw import Answer, body_of, connected, head_of, request_of

KIB = 1024


@asynccontextmanager
async def rereading(issuer: FakeIssuer, folder: Path, **limits: str) -> AsyncIterator[GatewayInLoop]:
    """A gateway whose issuer answers its first read only. Set `issuer.hangs_until` to answer later ones."""
    known = {"issuer": issuer.url, "audience": AUDIENCE, "tenant": "laptop"}
    async with FakeEngine() as engine:
        config = a_config(engine.url, identity={"issuers": {"corp": known}}, limits=limits)
        config = {name: value for name, value in config.items() if name != "anonymous_tenant"}
        async with gateway_in_loop(config, folder) as gateway:
            await gateway.wait_for_status(lambda status: status["issuers"]["corp"]["keys"] == 1)
            issuer.hangs_until = asyncio.Event()
            await issuer.rotate(keep=False)
            try:
                yield gateway
            finally:
                issuer.hangs_until.set()


def bearer(token: str) -> bytes:
    return b"authorization: Bearer " + token.encode()


async def send(gateway: GatewayInLoop, token: str, size: int) -> Answer:
    async with connected(gateway.url) as caller:
        await caller.send(request_of(body_of("a" * size), bearer(token)))
        return await caller.answer()


async def held(gateway: GatewayInLoop, reached: Callable[[int], bool]) -> int:
    status = await gateway.wait_for_status(lambda status: reached(status["held"]["unverified_body_bytes"]))
    return status["held"]["unverified_body_bytes"]


async def test_body_is_not_read_further_while_the_token_is_unverified() -> None:
    decided = asyncio.Event()
    room: list[int] = []

    def reserve(size: int) -> bool:
        room.append(size)
        return True

    async def app(client: Client) -> None:
        client.hold_body(reserve)
        await decided.wait()
        client.resume_body()
        client.reply(200, [], bytes(await client.body(MIB)))

    connections = Connections(app, EdgeLimits(), lambda _id, _refused: None)
    connection, pipe = connections(), Pipe()
    connection.connection_made(pipe)  # pyright: ignore[reportArgumentType]
    connection.data_received(head_of(b"content-length: 4") + b"ab")
    await asyncio.sleep(0)
    assert (pipe.reading, room) == (False, [2])

    # Nothing else may resume reading, and a client that has not read an earlier response may catch up at any time.
    connection.pause_writing()
    connection.resume_writing()
    assert not pipe.reading

    decided.set()
    await asyncio.sleep(0)
    assert pipe.reading
    connection.data_received(b"cd")
    await asyncio.gather(*connections.tasks)
    assert pipe.written.endswith(b"\r\n\r\nabcd")
    assert room == [2]  # From then on, the bytes count for the tenant.


async def test_bodies_beyond_the_limit_are_rejected_until_the_keys_have_been_read(tmp_path: Path) -> None:
    async with (
        fake_issuer() as issuer,
        rereading(issuer, tmp_path, unverified_body_bytes_max="128KiB") as gateway,
        asyncio.TaskGroup() as group,
    ):
        first = group.create_task(send(gateway, token_of(issuer), 60 * KIB))
        counted = await held(gateway, lambda size: size > 60 * KIB)
        assert counted <= 61 * KIB

        refused = await send(gateway, token_of(issuer), 100 * KIB)
        assert (refused.status, refused.error["code"], refused.headers[b"retry-after"]) == (503, "key_unverified", b"5")

        assert issuer.hangs_until is not None
        issuer.hangs_until.set()
        assert (await first).status == 200
        assert (await send(gateway, token_of(issuer), 100 * KIB)).status == 200
        assert await held(gateway, lambda size: size == 0) == 0


async def test_forged_tokens_get_their_usual_rejection_and_free_their_bytes(tmp_path: Path) -> None:
    async with fake_issuer() as issuer, rereading(issuer, tmp_path) as gateway, asyncio.TaskGroup() as group:
        forged = token_of(issuer, key=signing_key("forged", "ES256", number=5))
        sending = group.create_task(send(gateway, forged, 100 * KIB))
        await held(gateway, lambda size: size > 60 * KIB)

        assert issuer.hangs_until is not None
        issuer.hangs_until.set()
        assert (await sending).status == 401
        assert await held(gateway, lambda size: size == 0) == 0


async def test_large_body_of_a_caller_with_a_new_key_arrives_whole(tmp_path: Path) -> None:
    body = body_of("a" * (4 * MIB))
    async with (
        fake_issuer() as issuer,
        rereading(issuer, tmp_path) as gateway,
        connected(gateway.url) as caller,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(caller.send(request_of(body, bearer(token_of(issuer)))))
        # The limit is far above the bytes that one read can contain.
        assert await held(gateway, lambda size: size > 0) < MIB

        assert issuer.hangs_until is not None
        issuer.hangs_until.set()
        assert (await caller.answer()).status == 200


async def test_admin_listener_drops_large_bodies_before_it_knows_the_operator() -> None:
    asked = asyncio.Event()
    seen: list[Client] = []

    async def requests(_query: object) -> dict[str, object]:
        await asked.wait()
        return {}

    admin = AdminApp(
        ready=lambda: (True, ""),
        metrics=lambda: lambda: (b"", ""),
        status=dict,
        explain=lambda _id, _here: requests(None),  # type: ignore[arg-type, return-value]
        requests=requests,
        verdict=dict,
        reads=ReadLog(None, ""),
    )

    async def app(client: Client) -> None:
        seen.append(client)
        await admin(client)

    connections = Connections(app, EdgeLimits(), lambda _id, _refused: None)
    connection, pipe = connections(), Pipe()
    connection.connection_made(pipe)  # pyright: ignore[reportArgumentType]
    connection.data_received(head_of(b"content-length: 100000000", first=b"GET /requests HTTP/1.1"))
    await asyncio.sleep(0)
    connection.data_received(b"a" * (BODY_BYTES_MAX + 1))

    assert seen[0].received  # The body has been dropped.
    asked.set()
    await asyncio.gather(*connections.tasks)
    assert pipe.written.startswith(b"HTTP/1.1 200")
