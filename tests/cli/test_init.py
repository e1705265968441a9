"""Configuration files written by `headgate init`."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.config.load import load
from headgate.config.settings import Settings
from headgate.config.starter_config import EXAMPLE_POOL, public_name
from headgate.config.traffic_shapes import SHAPES
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES
from headgate.model.policy import ServiceClass
from headgate.model.units import MINUTE, SECOND
from testing.fake_engine import FakeEngine
from testing.ports import free_port
from testing.real_engines import RealEngine, llamacpp
from tests.cli.conftest import Headgate, Said

RECORDED = Path(__file__).parents[1] / "engines" / "recorded"
NEXT_STEPS = """\
next steps:
  headgate check     checks the file
  headgate doctor    compares it with the engine
  headgate serve     runs the gateway
"""


def settings_of(file: Path, **environ: str) -> Settings:
    return load(file, environ, engines=DIALECTS, profiles=PROFILES)


def text_of(file: Path) -> str | None:
    return file.read_text() if file.exists() else None


def classes_of(file: Path) -> dict[str, ServiceClass]:
    return {each.name: each for each in settings_of(file).policy.classes}


@pytest.mark.parametrize("shape", SHAPES)
def test_starter_configuration_has_no_problems_or_warnings(headgate: Headgate, file: Path, shape: str) -> None:
    assert headgate("init", "--traffic", shape) == Said(
        0,
        "",
        f"wrote headgate.yaml for {shape} traffic\n"
        + NEXT_STEPS.replace(
            "next steps:\n",
            "next steps:\n  edit pools and models: set your engine's address and its name for the model\n",
        ),
    )

    checked = headgate("check")
    assert checked.code == 0
    assert "warning" not in checked.out


@pytest.mark.parametrize("shape", SHAPES)
def test_starter_lines_are_short_and_limits_are_commented(headgate: Headgate, file: Path, shape: str) -> None:
    headgate("init", "--traffic", shape)
    text = file.read_text()

    assert [line for line in text.splitlines() if len(line) > 120] == []
    assert re.findall(r"^(?! +#).*\n +queue_length_max:.*$", text, re.MULTILINE) == []
    assert text.count("queue_length_max:") == len(SHAPES[shape].queues)


@pytest.mark.parametrize("shape", SHAPES)
def test_suggested_targets_are_valid(headgate: Headgate, file: Path, shape: str) -> None:
    headgate("init", "--traffic", shape)
    before = classes_of(file)["interactive"]
    assert before.tpot_assumed

    file.write_text(re.sub(r"# (ttft|tpot|objectives):", r"\1:", file.read_text()))

    interactive = classes_of(file)["interactive"]
    assert (interactive.ttft_ns, interactive.tpot_ns) == (before.ttft_ns, before.tpot_ns)
    assert (interactive.ttft_assumed, interactive.tpot_assumed) == (False, False)
    assert interactive.ttft_ns is not None
    assert interactive.ttft_ns < interactive.queue_wait_ns_max
    assert "99 % within ttft, 99.5 % available" in headgate("check").out
    assert settings_of(file).warnings == ()


def test_chat_traffic_gets_shorter_waits_and_queues_than_bursty_traffic(headgate: Headgate, tmp_path: Path) -> None:
    for shape in ("chat", "bursty"):
        headgate("init", "--traffic", shape, "--config", f"{shape}.yaml")
    chat, bursty = classes_of(tmp_path / "chat.yaml"), classes_of(tmp_path / "bursty.yaml")

    assert chat.keys() == bursty.keys() == {"interactive", "long"}
    for name in chat:
        assert chat[name].queue_wait_ns_max < bursty[name].queue_wait_ns_max
        assert chat[name].queue_length_max < bursty[name].queue_length_max
    assert chat["interactive"].queue_wait_ns_max == 5 * SECOND


def test_batch_traffic_classifies_requests_as_batch_by_default(headgate: Headgate, file: Path) -> None:
    headgate("init", "--traffic", "batch")
    classes = classes_of(file)

    assert [each.name for each in classes.values() if each.accepts_unclassified] == ["batch"]
    assert classes["batch"].queue_wait_ns_max == 60 * MINUTE
    assert classes["interactive"].band < classes["batch"].band
    assert settings_of(file).limits.requests_open_max > sum(each.queue_length_max for each in classes.values())


def test_mixed_traffic_gets_three_classes_with_their_own_limits(headgate: Headgate, file: Path) -> None:
    headgate("init")
    classes = classes_of(file)

    assert [(each.name, each.band) for each in classes.values()] == [("interactive", 0), ("long", 1), ("batch", 2)]
    assert len({each.queue_wait_ns_max for each in classes.values()}) == 3
    assert len({each.queue_length_max for each in classes.values()}) == 3


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("places", [1, 4, 64, 100_000])
def test_queue_lengths_are_limited_for_any_engine(shape: str, places: int) -> None:
    lengths = [queue.length(places) for queue in SHAPES[shape].queues.values()]

    assert all(16 <= length <= 10_000 for length in lengths)


def test_existing_file_is_kept_unless_forced(headgate: Headgate, file: Path) -> None:
    file.write_text("mine")

    assert headgate("init") == Said(
        1, "", "headgate: headgate.yaml exists; choose another file with --config, or overwrite it with --force\n"
    )
    assert file.read_text() == "mine"
    assert headgate("init", "--force").code == 0
    assert settings_of(file).pools[0].endpoints[0].url == EXAMPLE_POOL.url


def test_unwritable_path_is_reported(headgate: Headgate) -> None:
    assert headgate("init", "--config", "none/x.yaml") == Said(
        1, "", "headgate: cannot write none/x.yaml: No such file or directory\n"
    )


# From a running engine


async def asked(headgate: Headgate, *arguments: str) -> Said:
    return await asyncio.to_thread(headgate, "init", *arguments)


async def test_vllm_is_detected_by_its_metrics(headgate: Headgate, file: Path) -> None:
    async with FakeEngine(models=("Qwen/Qwen3-32B", "lora-a")) as engine:
        said = await asked(headgate, "--traffic", "chat", "--from", engine.url + "/v1/")

    assert said == Said(
        0,
        "",
        f"{engine.url}: vllm 0.0-fake with model Qwen/Qwen3-32B; other models: lora-a\n"
        f"wrote headgate.yaml for chat traffic\n{NEXT_STEPS}",
    )
    [pool] = settings_of(file).pools
    assert (pool.engine, pool.served_model, pool.endpoints[0].url) == ("vllm", "Qwen/Qwen3-32B", engine.url)
    assert pool.endpoints[0].in_flight_max == 64
    assert "# The vLLM API does not report --max-num-seqs; 64 is a first guess." in (text_of(file) or "")
    assert [model.name for model in settings_of(file).policy.models] == ["Qwen/Qwen3-32B"]


@pytest.mark.parametrize(("reported", "slots"), [(2, 2), (None, 1)])
async def test_lora_adapters_are_written_as_models(
    headgate: Headgate, file: Path, reported: int | None, slots: int
) -> None:
    async with FakeEngine(models=("base",)) as engine:
        engine.adapters, engine.max_lora = {"sql-lora": "/sql", "chat-lora": "/chat"}, reported
        said = await asked(headgate, "--from", engine.url)

    assert f"{engine.url}: vllm 0.0-fake with model base; adapters: sql-lora, chat-lora\n" in said.err
    settings = settings_of(file)
    assert [(each.name, each.adapter) for each in settings.policy.models] == [
        ("base", ""),
        ("sql-lora", "sql-lora"),
        ("chat-lora", "chat-lora"),
    ]
    assert settings.policy.pools[0].max_lora == slots
    assert max(map(len, (text_of(file) or "").splitlines())) <= 120


async def test_llamacpp_slots_set_in_flight_max(headgate: Headgate, file: Path) -> None:
    async with FakeEngine(models=("/models/smol.gguf",)) as engine:
        engine.metrics = (RECORDED / "llamacpp-2026.10.txt").read_bytes()
        engine.props = {"total_slots": 6, "build_info": "b6000"}
        said = await asked(headgate, "--from", engine.url)

    assert said.code == 0
    [pool] = settings_of(file).pools
    assert (pool.engine, pool.served_model, pool.endpoints[0].in_flight_max) == ("llamacpp", "/models/smol.gguf", 6)
    assert [model.name for model in settings_of(file).policy.models] == ["smol"]
    assert "# The engine reports a limit of 6 concurrent requests." in (text_of(file) or "")


async def test_unknown_engine_is_treated_as_openai_compatible(headgate: Headgate, file: Path) -> None:
    async with FakeEngine() as engine:
        engine.metrics_status = 404
        await asked(headgate, "--from", engine.url)

    [pool] = settings_of(file).pools
    assert (pool.engine, pool.endpoints[0].in_flight_max) == ("openai_compatible", 4)


async def test_engine_key_is_written_as_a_variable_reference(
    headgate: Headgate, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeEngine(api_key="canary-7d") as engine:
        without = await asked(headgate, "--from", engine.url)
        unset = await asked(headgate, "--from", engine.url, "--api-key-env", "ENGINE_KEY")
        monkeypatch.setenv("ENGINE_KEY", "canary-7d")
        said = await asked(headgate, "--from", engine.url, "--api-key-env", "ENGINE_KEY")

    assert without.err == (
        f"headgate: {engine.url}: GET /v1/models returned 401: a valid key is required; "
        "provide the engine's API key (--api-key-env)\n"
    )
    assert unset.err == ("headgate: environment variable ENGINE_KEY is not set; set it to the engine's API key\n")
    assert said.code == 0
    assert "canary" not in f"{text_of(file)}{said.err}"
    assert settings_of(file, ENGINE_KEY="canary-7d").pools[0].api_key == "canary-7d"


async def test_unreachable_engine_leaves_no_file(headgate: Headgate, file: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with FakeEngine() as engine:
        engine.loading = True
        loading = await asked(headgate, "--from", engine.url)
    gone = await asked(headgate, "--from", nowhere)
    wrong = await asked(headgate, "--from", "localhost:8000")

    assert (loading.code, loading.err) == (
        1,
        (
            f"headgate: {engine.url}: GET /v1/models returned 503: Loading model; "
            "retry when the engine has loaded its model\n"
        ),
    )
    assert (gone.code, gone.err) == (
        1,
        f"headgate: {nowhere}: GET /v1/models failed: connection refused; start the engine or correct the address\n",
    )
    assert (wrong.code, wrong.err) == (
        1,
        "headgate: --from is not the URL of an engine; write it as http://HOST:PORT or https://HOST\n",
    )
    assert text_of(file) is None


@pytest.mark.parametrize(
    ("served", "public"),
    [
        ("smollm2", "smollm2"),
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B"),
        ("/models/a b.gguf", "a-b"),
        ("./x/", "x"),
        ("ünï", "n"),
        ("///", "model"),
        ("a ${HOME}", "a-HOME"),
    ],
)
def test_model_gets_a_usable_public_name(served: str, public: str) -> None:
    assert public_name(served) == public


@pytest.mark.parametrize("served", ['with "quotes" and ${HOME}', "ünï 😀", "a: b # c", "no"])
async def test_any_model_name_round_trips_through_the_file(headgate: Headgate, file: Path, served: str) -> None:
    async with FakeEngine(models=(served,)) as engine:
        await asked(headgate, "--from", engine.url)

    assert settings_of(file).pools[0].served_model == served


@pytest.fixture(scope="module")
def real_llamacpp() -> Iterator[RealEngine]:
    with llamacpp(parallel=3) as engine:
        yield engine


@pytest.mark.llamacpp
@pytest.mark.timeout(600)
def test_real_llamacpp_is_detected_and_passes_doctor(headgate: Headgate, file: Path, real_llamacpp: RealEngine) -> None:
    about = f"main/{real_llamacpp.url.removeprefix('http://')}"
    content = (
        f"ok      {about}: metrics: running, waiting\n",
        f"ok      {about}: runs 3 requests concurrently, equal to in_flight_max\n",
    )
    # Both commands wait a few seconds for a page; a paused engine may take longer.
    for _ in range(4):
        written = headgate("init", "--force", "--traffic", "chat", "--from", real_llamacpp.url)
        examined = headgate("doctor")
        if written.code == 0 and all(line in examined.out for line in content):
            break

    assert written.code == 0
    [pool] = settings_of(file).pools
    assert (pool.engine, pool.served_model, pool.endpoints[0].in_flight_max) == ("llamacpp", real_llamacpp.model, 3)
    assert [line for line in content if line not in examined.out] == []
    assert f"problem {about}" not in examined.out
