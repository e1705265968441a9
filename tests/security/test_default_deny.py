"""Paths and methods that are not listed are rejected.

A table lists every route on both listeners and who may use it; a new route without a row in the table fails these
tests. Unlisted paths, in any spelling, are rejected without sending a request to an engine. Authorization uses the path
exactly as sent, so that no later normalization can change its meaning.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from headgate.edge.anthropic import MESSAGES_ROUTES
from headgate.edge.app import GET_ROUTES, ROUTES
from headgate.edge.pages.served import error_pages
from headgate.model.outcome import Outcome
from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, a_config, gateway_in_loop
from tests.edge.test_the_door import config_with_keys
from tests.security.raw import Answer, Closed, body_of, connected, request_of

KEY = b"authorization: Bearer hg-acme"
METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"PROPFIND", b"PURGE")

# Data listener: path -> its only method. Every path requires an API key.
NEEDS_A_KEY = {
    b"/v1/chat/completions": b"POST",
    b"/v1/completions": b"POST",
    b"/v1/embeddings": b"POST",
    b"/v1/responses": b"POST",
    b"/v1/messages": b"POST",
    b"/v1/messages/count_tokens": b"POST",
    b"/v1/audio/transcriptions": b"POST",
    b"/v1/audio/translations": b"POST",
    b"/v1/rerank": b"POST",
    b"/rerank": b"POST",
    b"/v2/rerank": b"POST",
    b"/v1/score": b"POST",
    b"/score": b"POST",
    b"/classify": b"POST",
    b"/v1/classify": b"POST",
    b"/pooling": b"POST",
    b"/tokenize": b"POST",
    b"/detokenize": b"POST",
    b"/v1/models": b"GET",
    b"/v1/usage": b"GET",
}
# Data listener: documents served without a key, for GET and HEAD.
ERROR_PAGES = {b"/errors", b"/errors/"} | {b"/errors/%b" % each.encode() for each in Outcome}
# Admin listener: read-only pages served without a key.
NEEDS_NO_KEY = (b"/health", b"/ready", b"/metrics", b"/status", b"/verdict")
# Admin listener: read-only pages that take a query.
NEEDS_NO_KEY_ASKED = (b"/requests",)
# Admin listener: read-only pages whose path ends with the name of an object.
NEEDS_NO_KEY_BELOW = (b"/explain/",)
# The console, its files and the paths that redirect to it.
CONSOLE_FILES = {b"/console/" + each.encode() for each in ("", "console.css", "console.js", "icon.svg")}
LEADS_THERE = (b"/", b"/console")

# Control paths of engines and other servers, from current or earlier versions.
# fmt: off
CONTROL_PATHS = [
    "/pause", "/resume", "/is_paused", "/abort_requests", "/abort_request", "/update_weights",
    "/update_weights_from_disk", "/invocations", "/ping", "/init_weight_transfer_engine", "/start_weight_update",
    "/finish_weight_update", "/collective_rpc", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/reset_prefix_cache",
    "/reset_mm_cache", "/reset_encoder_cache", "/sleep", "/wake_up", "/is_sleeping", "/start_profile",
    "/stop_profile", "/server_info", "/load", "/version", "/tokenizer_info",
    "/generate", "/generate_stream",
    "/encode", "/flush_cache", "/get_server_info", "/get_model_info", "/set_internal_state",
    "/release_memory_occupation", "/resume_memory_occupation", "/open_session", "/close_session",
    "/configure_logging", "/dump_metrics", "/slots", "/slots/0", "/props", "/lora-adapters", "/infill", "/completion",
    "/completions", "/embedding", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/inference/v1/generate",
    "/kv_cache_events", "/prometheus_metrics", "/metrics", "/health", "/ready", "/status", "/docs", "/redoc",
    "/openapi.json", "/admin", "/debug/pprof", "/.env", "/server-status", "/v1/files", "/v1/batches",
    "/v1/audio/speech", "/v1/audio/transcriptions/abc", "/v1/images/generations", "/v1/fine_tuning/jobs",
    "/v1/assistants", "/v1/threads", "/v1/realtime", "/v1/responses/abc",
    "/v1/responses/abc/cancel", "/v1/models/m", "/v1", "/api/tags", "/api/generate", "/api/chat",
    "/v2/repository/index", "/v2/repository/models/m/load", "/v2/models/m/config", "/v2/models/m/stats",
    "/v2/models/m/trace/setting", "/v2/models/m/versions/1/infer", "/v2/models/m/generate", "/v2/models/m/explain",
    "/v2/systemsharedmemory/region/r/register", "/v2/cudasharedmemory/status", "/v2/logging", "/v2/trace/setting",
    "/v2/models", "/v2/health", "/shutdown", "/reload", "/config",
]
# fmt: on

SPELLINGS = [
    b"//v1/models",
    b"/v1//models",
    b"/v1/models/",
    b"/v1/models//",
    b"/V1/models",
    b"/v1/Models",
    b"/v1/%6dodels",
    b"/v1%2fmodels",
    b"/v1%2Fmodels",
    b"/%76%31/models",
    b"/v1/models%00",
    b"/v1/models%20",
    b"/v1/models%0a",
    b"/v1/models%3f",
    b"/v1/models;x=1",
    b"/v1/models;",
    b"/v1;x/models",
    b"/v1/models/.",
    b"/v1/models/..",
    b"/v1/models/../models",
    b"/v1/./models",
    b"/./v1/models",
    b"/../v1/models",
    b"/x/../v1/models",
    b"/v1/models/../../metrics",
    b"/v1/%2e%2e/v1/models",
    b"/v1/..%2fmetrics",
    b"/v1\\models",
    b"\\v1\\models",
    b"/v1/models#x",
    b"/v1/mod\xc3\xa9ls",
    b"/v1/models\xef\xbc\x8f",
    b"/v1/models\xff",
    b"/v1/models\x00",
    b"/v1/models\t",
    b"/v1/models\x7f",
    b"v1/models",
    b"/",
    b"*",
    b"/v1/chat/completions/x",
    b"/v1/chat/completions%2f",
    b"/v1/chat%2fcompletions",
    b"/v1/chat/completions/../../metrics",
    b"/v1/chat/completions;jsessionid=1",
    b"/v1/chat/completions.json",
    b"/v1/chat/completions\x00/v1/models",
    b"/v1/chat",
    b"?/v1/models",
    b"/?/v1/models",
    b"/" + b"a" * 4000,
    b"/" + b"../" * 500 + b"etc/passwd",
]


@dataclass(frozen=True)
class Stage:
    engine: FakeEngine
    gateway: GatewayInLoop

    async def ask(self, method: bytes, path: bytes, *lines: bytes, admin: bool = False) -> Answer | None:
        """Send a request; return the response, or None if the connection was closed without one."""
        url = self.gateway.admin_url if admin else self.gateway.url
        first = b"%b %b HTTP/1.1" % (method, path)
        async with connected(url) as caller:
            await caller.send(request_of(body_of("hi"), b"connection: close", *lines, first=first))
            if method == b"HEAD":
                head = await caller.rest()
                return Answer(int(head.split(b" ")[1]), {}, b"")
            try:
                return await caller.answer()
            except Closed:
                return None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with FakeEngine() as engine:
        folder = tmp_path_factory.mktemp("deny")
        async with gateway_in_loop(config_with_keys(engine.url), folder) as gateway:
            yield Stage(engine, gateway)


def test_table_lists_every_data_listener_route() -> None:
    assert {*ROUTES, *MESSAGES_ROUTES, *GET_ROUTES} == NEEDS_A_KEY.keys()
    assert error_pages().keys() == ERROR_PAGES


async def test_table_lists_every_admin_listener_page(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        admin = gateway.gateway._admin

    assert set(admin.pages) == set(NEEDS_NO_KEY)
    assert set(admin.pages_with_query) == set(NEEDS_NO_KEY_ASKED)
    assert set(admin.pages_by_name) == set(NEEDS_NO_KEY_BELOW)
    assert all(path == b"/docs" or path.startswith(b"/docs/") for path in admin.docs)
    assert {path for path in CONSOLE_FILES if path.removeprefix(b"/console/") not in admin.console._files} == set()
    assert admin.api is None, "without operator keys there must be no write API"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", NEEDS_A_KEY, ids=bytes.decode)
async def test_route_checks_the_key_first(stage: Stage, path: bytes) -> None:
    stage.engine.requests.clear()
    for line in (b"x-a: b", b"authorization: Bearer hg-nobody", b"authorization: hg-acme", b"x-api-key: hg-nobody"):
        answer = await stage.ask(NEEDS_A_KEY[path], path, line)
        assert answer is not None
        assert answer.status == 401
        assert answer.error["message"].startswith("missing or unknown API key")

    assert stage.engine.requests == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", NEEDS_A_KEY, ids=bytes.decode)
async def test_route_accepts_only_its_method(stage: Stage, path: bytes) -> None:
    stage.engine.requests.clear()
    for method in METHODS:
        if method != NEEDS_A_KEY[path]:
            answer = await stage.ask(method, path, KEY)
            assert answer is None or answer.status in {400, 405, 501}, method

    assert stage.engine.requests == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", [*NEEDS_NO_KEY, *NEEDS_NO_KEY_ASKED], ids=bytes.decode)
async def test_admin_page_is_read_only(stage: Stage, path: bytes) -> None:
    for method in METHODS:
        answer = await stage.ask(method, path, admin=True)
        if method in (b"GET", b"HEAD"):
            assert answer is not None
            assert answer.status == 200
        else:
            assert answer is None or answer.status in {400, 404, 405, 501}, method


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "path",
    # Liveness probes may send any Host header; the page contains nothing confidential.
    [
        *(each for each in NEEDS_NO_KEY if each != b"/health"),
        *NEEDS_NO_KEY_ASKED,
        b"/explain/req_1",
        *sorted(CONSOLE_FILES),
        *LEADS_THERE,
        b"/docs/",
        b"/admin/v1/tenants",
    ],
    ids=bytes.decode,
)
async def test_every_admin_page_rejects_unknown_hosts_and_foreign_origins(stage: Stage, path: bytes) -> None:
    """Covers DNS rebinding, in which a browser sends the attacker's host name to the admin listener's address."""
    authority = stage.gateway.admin_url.removeprefix("http://").encode()

    async def status(host: bytes, *lines: bytes) -> int:
        async with connected(stage.gateway.admin_url) as caller:
            first = b"GET %b HTTP/1.1\r\nhost: %b" % (path, host)
            await caller.send(b"\r\n".join([first, *lines, b"connection: close", b"", b""]))
            return (await caller.answer()).status

    assert await status(b"attacker.example:9090") == 421
    assert await status(authority, b"origin: http://attacker.example:9090") == 421
    assert await status(authority, b"origin: http://" + authority) != 421


@pytest.mark.asyncio(loop_scope="module")
async def test_explanation_is_read_only_and_requires_the_exact_request_id(stage: Stage) -> None:
    served = await stage.ask(b"POST", b"/v1/chat/completions", KEY)
    assert served is not None
    name = served.headers[b"x-request-id"]

    async def statuses(path: bytes, *methods: bytes) -> set[int | None]:
        answers = [await stage.ask(method, path, admin=True) for method in methods]
        return {answer and answer.status for answer in answers}

    path = b"/explain/" + name
    assert await statuses(path, b"GET", b"HEAD") == {200}
    assert await statuses(path, *(each for each in METHODS if each not in (b"GET", b"HEAD"))) <= {
        None,
        400,
        404,
        405,
        501,
    }
    for spelling in (
        *(
            b"/explain/",
            b"/explain",
            b"/explain//" + name,
            b"//explain/" + name,
            path + b"/",
            path + b"%00",
            path + b";x",
        ),
        *(b"/explain/../status", b"/explain/..", b"/explain/%72eq_1", b"/explain/x/" + name, b"/EXPLAIN/" + name),
        *(path.replace(b"_", b"%5f"), b"/explain/" + b"a" * 129),
    ):
        assert await statuses(spelling, b"GET") <= {None, 400, 404}, spelling
    assert (await stage.ask(b"GET", path, KEY)).status == 404  # type: ignore[union-attr]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("admin", [False, True], ids=["data", "admin"])
@pytest.mark.parametrize("method", [b"GET", b"POST"], ids=bytes.decode)
async def test_engine_control_paths_are_not_forwarded(stage: Stage, method: bytes, admin: bool) -> None:
    """Uses a valid key, because callers are not operators."""
    stage.engine.requests.clear()
    probes = {probe.path for probe in stage.engine.probes}
    reads = admin and method == b"GET"
    allowed = {path.decode(): 200 for path in NEEDS_NO_KEY if path.decode() in CONTROL_PATHS} | {"/docs": 308}
    answered = {}
    for path in CONTROL_PATHS:
        answer = await stage.ask(method, path.encode(), KEY, admin=admin)
        answered[path] = answer.status if answer else None

    assert {path: status for path, status in answered.items() if status != 404} == (allowed if reads else {})
    assert stage.engine.requests == []
    assert {probe.path for probe in stage.engine.probes} <= probes | {"/health", "/metrics", "/v1/models", "/version"}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("admin", [False, True], ids=["data", "admin"])
@pytest.mark.parametrize("method", [b"GET", b"POST"], ids=bytes.decode)
async def test_alternative_spelling_of_a_path_is_rejected(stage: Stage, method: bytes, admin: bool) -> None:
    stage.engine.requests.clear()
    paths = [path.replace(b"/v1/models", b"/status") for path in SPELLINGS] if admin else SPELLINGS
    answered = {}
    for path in paths:
        answer = await stage.ask(method, path, KEY, admin=admin)
        answered[path] = answer.status if answer else None
        assert answer is None or b"hg-acme" not in answer.body

    beyond = {path: status for path, status in answered.items() if status not in {400, 404, 405, None}}
    leads = {path: 307 for path in answered if path.partition(b"?")[0] in LEADS_THERE}
    assert beyond == (leads if admin and method == b"GET" else {})
    assert stage.engine.requests == []


@pytest.mark.asyncio(loop_scope="module")
async def test_query_string_is_ignored_and_not_forwarded(stage: Stage) -> None:
    """Some clients add a query such as `?api-version=…`. It cannot replace a key."""
    stage.engine.requests.clear()
    for query in (b"?", b"?api-version=1", b"?key=hg-acme", b"?x=%00", b"?/../../metrics", b"?a?b"):
        refused = await stage.ask(b"POST", b"/v1/chat/completions" + query)
        served = await stage.ask(b"POST", b"/v1/chat/completions" + query, KEY)
        assert refused is not None
        assert served is not None
        assert (refused.status, served.status) == (401, 200)

    assert {each.path for each in stage.engine.requests} == {"/v1/chat/completions"}


@pytest.mark.asyncio(loop_scope="module")
async def test_two_authorization_headers_are_rejected(stage: Stage) -> None:
    """A proxy in front of the gateway may have checked the other header."""
    for lines in ((KEY, b"authorization: Bearer hg-nobody"), (b"authorization: Bearer hg-nobody", KEY), (KEY, KEY)):
        answer = await stage.ask(b"GET", b"/v1/models", *lines)
        assert answer is None or answer.status in {400, 401}


@pytest.mark.asyncio(loop_scope="module")
async def test_tenant_cannot_act_as_another(stage: Stage) -> None:
    """Only the key identifies the tenant."""
    lines = (b"x-headgate-tenant: acme", b"x-tenant-id: acme", b"x-gateway-inference-fairness-id: acme", b"user: acme")
    limited = b"authorization: Bearer hg-limited"
    answer = await stage.ask(b"POST", b"/v1/chat/completions", limited, *lines)

    assert answer is not None
    assert answer.status == 404  # Only acme may use the model.
