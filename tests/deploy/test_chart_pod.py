"""The gateway of the Helm chart starts as a process, passes its probes, serves, reloads an upgrade and drains."""

import asyncio
from pathlib import Path

import pytest

from headgate.wire.keys import digest, format_digest
from testing.fake_engine import Behaviour
from testing.gateway import chat
from tests.deploy.charts import Release, rendered
from tests.deploy.pods import Pod, one_engine, running_pod
from tests.deploy.test_pods import SECRET, events, until_served

KEY = "hg-" + "k" * 40


def release(*options: str) -> Release:
    """The value set `operators`, with the hash of KEY."""
    hashed = format_digest(digest(SECRET["HEADGATE_KEY_SECRET"].encode(), KEY))
    return rendered("operators", "--set", f"config.tenants.team.keys={{{hashed}}}", *options)


@pytest.mark.process
async def test_gateway_of_the_chart_serves_reloads_an_upgrade_and_drains(tmp_path: Path) -> None:
    installed, upgraded = release(), release("--set", "config.models.other=chat")
    deployment = installed.the("Deployment")
    headers = {"Authorization": f"Bearer {KEY}"}
    async with (
        one_engine() as (engine, dns),
        running_pod("headgate-0", deployment, installed.config, tmp_path, engine=engine, dns=dns, secret=SECRET) as pod,
    ):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            await pod.wait_for_success(probe)
        await until_served(pod, headers)
        await engine.next_request()
        engine.behaviour = Behaviour(hang_after=2, tokens=4)
        before = await models(pod, headers)
        body = chat(model="qwen3", stream=True)
        async with pod.http.post(f"{pod.url('http')}/v1/chat/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            received = await engine.next_request()
            lines = events(answer)
            await anext(lines)
            pod.mounts["config"].write({"headgate.yaml": pod.on_this_machine(upgraded.config)})
            async with asyncio.timeout(60):
                while (after := await models(pod, headers)) == before:
                    await asyncio.sleep(0.1)
            pod.process.terminate()
            await pod.wait_for_failure("readinessProbe")
            await pod.wait_for_success("livenessProbe")
            received.resume.set()
            rest = [line async for line in lines]
        ended = await asyncio.to_thread(pod.process.wait_until_ended)

    assert upgraded.the("Deployment") == deployment
    assert (before, after) == ({"qwen3"}, {"qwen3", "other"})
    assert rest[-1].strip() == b"data: [DONE]"
    assert ended == 0, pod.process.log()


async def models(pod: Pod, headers: dict[str, str]) -> set[str]:
    """Names of the models that the key may use."""
    async with pod.http.get(f"{pod.url('http')}/v1/models", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return {each["id"] for each in (await answer.json())["data"]}
