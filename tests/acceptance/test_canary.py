"""Does a prompt, an answer or a key ever leave by a way that is not the caller's own?"""

import asyncio
from pathlib import Path

from headgate.wire.keys import digest, format_digest
from tests.support.fake_engine import Behaviour, FakeEngine
from tests.support.gateway import a_config, chat, gateway_beside

SECRET, KEY, ENGINE_KEY = "canary-secret-of-the-gateway", "hg-canary-key-of-a-caller", "canary-key-of-the-engine"
PROMPT, ANSWER = "canary-prompt", "canary-answer"
WORDS = (SECRET, KEY, ENGINE_KEY, PROMPT, ANSWER)

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"' + ANSWER.encode() + b'"}}]}\n\n'
BEHAVIOURS = (
    Behaviour(body=EVENT + b"data: [DONE]\n\n"),
    Behaviour(body=EVENT),
    Behaviour(body=EVENT + b'data: {"error":{"message":"no"}}\n\n'),
    Behaviour(status=500, error="no luck"),
    Behaviour(status=400, error="your mistake"),
    Behaviour(drop_before_head=True),
)


async def test_no_prompt_answer_or_key_in_any_output(tmp_path: Path) -> None:
    async with FakeEngine(api_key=ENGINE_KEY) as engine:
        config = a_config(engine.url, key_secret=SECRET, retry={"attempts_max": 1})
        config["pools"]["small"]["api_key"] = ENGINE_KEY
        config["tenants"] = {"acme": {"keys": [format_digest(digest(SECRET.encode(), KEY))]}}
        del config["anonymous_tenant"]
        arguments = ("--log-level", "debug", "--log-format", "json")
        async with gateway_beside(config, tmp_path, arguments=arguments) as (gateway, process):
            headers = {"authorization": f"Bearer {KEY}"}
            for behaviour in BEHAVIOURS:
                engine.script.append(behaviour)
                async with gateway.post(chat(PROMPT, stream=True), headers=headers) as answer:
                    await answer.read()
            for wrong in ({"model": PROMPT}, chat(PROMPT, model="unknown"), chat(PROMPT, stream="yes")):
                async with gateway.post(wrong, headers=headers) as answer:
                    assert answer.status in {400, 404}
            async with gateway.post(chat(PROMPT), headers={"authorization": f"Bearer {KEY}x"}) as answer:
                assert answer.status == 401
            seen = [await (await gateway.http.get(gateway.admin_url + path)).text() for path in ("/metrics", "/status")]
            process.terminate()
            await asyncio.to_thread(process.wait_until_ended)
            seen.append(process.log())

    assert '"message":"request ended"' in seen[-1]
    for text in seen:
        assert [word for word in WORDS if word in text] == []
