"""Does `headgate check` say what a file means, and what is wrong with it?"""

import json
from pathlib import Path

import pytest

from headgate.config.load import load
from headgate.engines.dialects import DIALECTS
from tests.cli.conftest import Headgate, Said
from tests.config.builders import SMALL, small_with

DIGEST = "hmac-sha256:" + "ab" * 32
CAPS = {
    "prompt_tokens": None,
    "trims_prompt": False,
    "output_tokens": None,
    "n": 8,
    "best_of": 8,
    "logprobs": 20,
    "prompt_logprobs": 0,
    "reasoning_effort": None,
}


def hash_of(file: Path) -> str:
    return load(file, {}, engines=DIALECTS).hash


def test_a_file_that_is_right_is_explained(headgate: Headgate, file: Path) -> None:
    file.write_text(SMALL)

    assert headgate("check") == Said(
        code=0,
        out=f"""\
configuration {hash_of(file)}
listens on 127.0.0.1:8080, for admins on 127.0.0.1:9090
pool small: 1 endpoint of llamacpp, 4 in flight at most, as smollm2
model smollm2: served by small
class interactive: band 0, takes service_tier priority, fast and prompts up to 8,000 tokens, waits 10s at most
class long: band 1, takes prompts of any length, waits 30s at most
class batch: band 2, takes service_tier flex, waits 10m at most
callers: 1 tenant, 0 keys; without a key: tenant "demo"
""",
        err="",
    )


def test_warnings_come_with_the_meaning(headgate: Headgate, file: Path) -> None:
    file.write_text(small_with("  x: {}", "classes: {mine: {band: 0, unnamed: false, pools: small}}").replace(
        "anonymous_tenant: demo\n", ""
    ))  # fmt: skip

    said = headgate("check", "headgate.yaml")

    assert said.code == 0
    assert said.out.splitlines()[4:] == [
        "class mine: band 0, takes those who name it, waits 30s at most, on small",
        "callers: 2 tenants, 0 keys",
        (
            "warning: headgate.yaml:6: tenants.demo: has no key and is not the anonymous tenant, "
            "so nobody can call as it; `headgate keys new --tenant demo` makes one"
        ),
        (
            "warning: headgate.yaml:7: tenants.x: has no key and is not the anonymous tenant, "
            "so nobody can call as it; `headgate keys new --tenant x` makes one"
        ),
        (
            "warning: headgate.yaml:8: classes: no class takes requests that name neither class nor tier; "
            "set unnamed: true on one of them"
        ),
    ]


def test_caps_are_told_where_they_are_not_the_usual_ones(headgate: Headgate, file: Path) -> None:
    caps = "{prompt_tokens: 32000, trims_prompt: true, n: 1, prompt_logprobs: unlimited, reasoning_effort: low}"
    file.write_text(small_with(f"classes: {{mine: {{band: 0, caps: {caps}}}}}"))

    assert headgate("check").out.splitlines()[4] == (
        "class mine: band 0, takes prompts of any length, waits 30s at most, prompt_tokens 32,000, trims_prompt true, "
        "n 1, prompt_logprobs unlimited, reasoning_effort low"
    )


def test_problems_go_to_stderr_and_the_code_is_one(headgate: Headgate, file: Path) -> None:
    file.write_text(small_with("drain: 30s", "health: {eject: 0s}"))

    assert headgate("check") == Said(
        code=1,
        out="",
        err="""\
headgate.yaml:8: drain: unknown key; did you mean "drain_grace"?
headgate.yaml:9: health.eject: must be at least 1ms, not 0s
""",
    )


def test_a_file_that_is_not_there_is_a_problem(headgate: Headgate) -> None:
    assert headgate("check", "other.yaml") == Said(
        code=1,
        out="",
        err="other.yaml: does not exist; name the configuration file, or let `headgate init` write one\n",
    )


def test_machines_get_the_meaning_as_one_object(
    headgate: Headgate, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S", "canary-5f1d-canary")
    file.write_text(
        SMALL.replace("demo: {}", f"demo: {{keys: ['{DIGEST}']}}").replace("engine: l", "api_key: '${S}', engine: l")
        + "key_secret: ${S}\n"
    )

    said = headgate("check", "--json")

    assert (said.code, said.err) == (0, "")
    assert "canary" not in said.out
    assert DIGEST not in said.out
    found = json.loads(said.out)
    assert found.pop("hash")
    assert found == {
        "ok": True,
        "listen": "127.0.0.1:8080",
        "admin_listen": "127.0.0.1:9090",
        "pools": {
            "small": {
                "engine": "llamacpp",
                "served_model": "smollm2",
                "endpoints": [{"id": "small/127.0.0.1:8081", "url": "http://127.0.0.1:8081", "in_flight_max": 4}],
            }
        },
        "models": {"smollm2": {"pools": ["small"]}},
        "classes": {
            "interactive": {"band": 0, "pools": [], "caps": CAPS},
            "long": {"band": 1, "pools": [], "caps": CAPS},
            "batch": {"band": 2, "pools": [], "caps": CAPS},
        },
        "tenants": 1,
        "keys": 1,
        "anonymous_tenant": "demo",
        "warnings": [],
    }


def test_machines_get_problems_as_one_object(headgate: Headgate, file: Path) -> None:
    file.write_text(small_with("drain: 30s"))

    said = headgate("check", "--json")

    assert (said.code, said.err) == (1, "")
    assert json.loads(said.out) == {
        "ok": False,
        "problems": [
            {
                "file": "headgate.yaml",
                "line": 8,
                "place": "drain",
                "message": 'unknown key; did you mean "drain_grace"?',
            }
        ],
    }
