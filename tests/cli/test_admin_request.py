"""Failed requests to the admin API: whether the gateway may have processed them."""

import asyncio
from asyncio import StreamReader, StreamWriter

import pytest

from headgate.cli.input.admin_request import AdminRequestFailed, AdminResponseLost, AdminTarget, post_to_admin


async def failed_request(*, closes: bool, listens: bool = True) -> AdminRequestFailed:
    """Returns how a request fails whose connection the server closes, or to which it never responds."""
    ended = asyncio.Event()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if not closes:
            await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    if not listens:
        server.close()
        await server.wait_closed()
        ended.set()
    with pytest.raises(AdminRequestFailed) as failed:
        await post_to_admin(AdminTarget(f"http://{host}:{port}", "hg-ops", None), "x", {}, response_timeout_s=0.5)
    await ended.wait()
    server.close()
    return failed.value


@pytest.mark.parametrize("closes", [True, False])
async def test_request_without_response_may_have_been_processed(*, closes: bool) -> None:
    assert isinstance(await failed_request(closes=closes), AdminResponseLost)


async def test_request_without_connection_was_not_processed() -> None:
    assert not isinstance(await failed_request(closes=True, listens=False), AdminResponseLost)
