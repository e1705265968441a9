"""A gateway without a cell keeps its endpoints' learned speeds across restarts."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from headgate.control.learned_speeds import (
    BYTES_MAX,
    FILE_NAME,
    VERSION,
    LearnedSpeeds,
    PoolIdentity,
    encode_speeds,
    replace_file,
)
from headgate.core.counters import LearnedSpeed
from headgate.model.speed import EngineSpeed
from headgate.model.units import EndpointId, PoolName
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, gateway_in_loop

SMALL = PoolName("small")
POOLS = {SMALL: PoolIdentity("vllm", "fake", EngineSpeed(), speed_assumed=True)}
SUMS = (50_000_000, 0, 0, 150_000_000, 0)
SPEED = LearnedSpeed(EndpointId("small/1"), SMALL, True, (3_000_000, 2_000_000), SUMS)
UNSETTLED = LearnedSpeed(EndpointId("small/2"), SMALL, False, (500_000, 500_000), (1_000_000, 0, 0, 500_000, 0))


class Speeds(LearnedSpeeds):
    """Learned speeds, using a scheduler that reports `learned`."""

    def __init__(self, folder: Path, *learned: LearnedSpeed, pools: dict[PoolName, PoolIdentity] = POOLS) -> None:
        self.learned: tuple[LearnedSpeed, ...] = learned
        # The interval is so long that only `stop` triggers another write.
        super().__init__(folder, lambda: dict(pools), lambda: self.learned, every_s=3_600, stop_s_max=60)


async def test_restart_reads_the_speeds_that_were_written(tmp_path: Path) -> None:
    await Speeds(tmp_path / "state", SPEED, UNSETTLED).write()

    assert Speeds(tmp_path / "state").read() == [SPEED, UNSETTLED]
    assert [each.name for each in (tmp_path / "state").iterdir()] == [FILE_NAME]


async def test_gateway_writes_the_speeds_once_more_when_it_stops(tmp_path: Path) -> None:
    speeds = Speeds(tmp_path, SPEED)
    running = asyncio.create_task(speeds.run())
    await asyncio.sleep(0)
    speeds.learned = (UNSETTLED,)
    await speeds.stop()
    await running

    assert Speeds(tmp_path).read() == [UNSETTLED]


async def test_pool_speeds_stay_in_the_file_until_one_of_its_endpoints_joins(tmp_path: Path) -> None:
    await Speeds(tmp_path, SPEED, UNSETTLED).write()
    restarted = Speeds(tmp_path)
    restarted.read()
    await restarted.write()
    assert Speeds(tmp_path).read() == [SPEED, UNSETTLED]

    restarted.learned = (SPEED,)
    await restarted.write()
    assert Speeds(tmp_path).read() == [SPEED]


async def test_speeds_are_not_written_for_a_pool_changed_at_runtime(tmp_path: Path) -> None:
    pools = dict(POOLS)
    speeds = Speeds(tmp_path, SPEED, pools=pools)
    pools[SMALL] = PoolIdentity("vllm", "another", EngineSpeed(), speed_assumed=True)
    await speeds.write()

    assert Speeds(tmp_path, pools=pools).read() == []


async def test_unchanged_speeds_are_not_written_again(tmp_path: Path) -> None:
    speeds = Speeds(tmp_path, SPEED)
    await speeds.write()
    (tmp_path / FILE_NAME).unlink()
    await speeds.write()
    assert not (tmp_path / FILE_NAME).exists()

    speeds.learned = (UNSETTLED,)
    await speeds.write()
    assert Speeds(tmp_path).read() == [UNSETTLED]


async def test_start_without_a_file_restores_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Speeds(tmp_path / "missing").read() == []
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def changed(**changes: object) -> bytes:
    """The file, with some top-level values changed."""
    return json.dumps(json.loads(encode_speeds(POOLS, [SPEED])) | changes).encode()


def with_endpoint(**changes: object) -> bytes:
    tree: dict[str, Any] = json.loads(encode_speeds(POOLS, [SPEED]))
    tree["pools"]["small"]["endpoints"]["small/1"].update(changes)
    return json.dumps(tree).encode()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (encode_speeds(POOLS, [SPEED])[:-9], "truncated"),
        (b'{"version":1,"other":' + b"[" * 100_000, "recursion"),
        (changed(version=VERSION + 1), f"the file has version {VERSION + 1}; this gateway reads version {VERSION}"),
        (changed(pools=None), "Expected `object`"),
        (with_endpoint(factors=[0, 1]), "Expected `int` >= 1"),
        (with_endpoint(factors=["a", 1]), "Expected `int`"),
        (with_endpoint(sums=[0, 10**9, 0, 0, 0]), "inconsistent sums"),
        (with_endpoint(sums=[0, -1, 0, 0, 0]), "Expected `int` >= 0"),
        (b" " * (BYTES_MAX + 1), "exceeds"),
    ],
    ids=[
        "empty file",
        "invalid UTF-8",
        "truncated file",
        "deeply nested value",
        "newer version",
        "wrong type",
        "zero factor",
        "text factor",
        "inconsistent sums",
        "negative sum",
        "too large",
    ],
)
def test_unusable_file_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, why: str
) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)

    assert Speeds(tmp_path).read() == []
    [warning] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert warning.getMessage() == "learned speeds ignored"
    assert why.lower() in str(warning.__dict__).lower()


OTHERS = {
    "engine": PoolIdentity("sglang", "fake", EngineSpeed(), speed_assumed=True),
    "model": PoolIdentity("vllm", "another", EngineSpeed(), speed_assumed=True),
    "speed": PoolIdentity("vllm", "fake", EngineSpeed(step_ps=1), speed_assumed=True),
    "configured": PoolIdentity("vllm", "fake", EngineSpeed(), speed_assumed=False),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
async def test_speeds_for_a_changed_pool_are_ignored(tmp_path: Path, other: PoolIdentity) -> None:
    await Speeds(tmp_path, SPEED).write()

    assert Speeds(tmp_path, pools={SMALL: other}).read() == []
    assert Speeds(tmp_path, pools={PoolName("large"): POOLS[SMALL]}).read() == []


async def test_speeds_for_an_unknown_pool_are_not_written(tmp_path: Path) -> None:
    await Speeds(tmp_path, SPEED, SPEED._replace(pool=PoolName("gone"))).write()

    assert Speeds(tmp_path).read() == [SPEED]


async def test_failed_write_is_logged_once_until_a_write_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file in place of the directory")
    speeds = Speeds(tmp_path / "state", SPEED)
    await speeds.write()
    await speeds.write()
    assert [each.getMessage() for each in caplog.records] == ["cannot write learned speeds"]

    (tmp_path / "state").unlink()
    await speeds.write()
    assert Speeds(tmp_path / "state").read() == [SPEED]


def test_failed_replacement_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "old").write_bytes(b"old")
    with pytest.raises(OSError, match="taken"):
        replace_file(tmp_path / "taken", b"new")

    assert (tmp_path / "taken" / "old").read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


async def test_restarted_gateway_uses_the_speeds_from_its_last_run(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, state_directory=str(tmp_path / "state"))
        async with gateway_in_loop(config, tmp_path) as gateway:
            [endpoint] = gateway.gateway._host.summary().endpoints
            assert endpoint.decode_percent == 100
        tree: dict[str, Any] = json.loads((tmp_path / "state" / FILE_NAME).read_bytes())
        kept = tree["pools"]["small"]["endpoints"][endpoint.id]
        assert kept["settled"] is False
        kept.update(settled=True, factors=SPEED.factors, sums=SUMS)
        (tmp_path / "state" / FILE_NAME).write_text(json.dumps(tree))

        async with gateway_in_loop(config, tmp_path) as gateway:
            [endpoint] = gateway.gateway._host.summary().endpoints
            assert (endpoint.decode_percent, endpoint.prefill_percent) == (300, 200)
            [speed] = gateway.gateway._host.learned_speeds()
            assert speed.converged
    tree = json.loads((tmp_path / "state" / FILE_NAME).read_bytes())
    assert tree["pools"]["small"]["endpoints"][endpoint.id]["factors"] == list(SPEED.factors)
