"""Does `headgate check` say what a file means, and what is wrong with it?"""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from headgate.config.class_rules import DEFAULT_RULES
from headgate.config.classes import DEFAULT_CLASSES
from headgate.config.extras import is_installed, missing_extras
from headgate.config.load import load
from headgate.config.protections import as_rows, protection_lines
from headgate.config.protections import protections as found_protections
from headgate.engines.dialects import DIALECTS, readable_kv
from headgate.model.engine_profile import PROFILES
from headgate.model.policy import (
    AdmissionRules,
    HeadroomRules,
    HealthRules,
    LadderRules,
    Pool,
    RetryRules,
    RoutingRules,
    SheddingRules,
)
from testing.ports import free_port
from tests.cli.conftest import Headgate, Said
from tests.config.builders import SMALL, settings_of, small_with

HOW_CLASSES_ARE_CHOSEN = (
    "the class of a request, by the first of these that applies (`headgate classify REQUEST.json` shows which):"
)
DIGEST = "hmac-sha256:" + "ab" * 32


def as_json(value: object) -> dict[str, object]:
    """What machines are told of a part of the policy: everything but its name, as the core has it."""
    told = json.loads(json.dumps(asdict(value)))
    told.pop("name", None)
    return told


def hash_of(file: Path) -> str:
    return load(file, {}, engines=DIALECTS, profiles=PROFILES).hash


def meaning(out: str) -> str:
    """The output without the list of protections."""
    return out.partition("protections:\n")[0]


def test_a_file_that_is_right_is_explained(headgate: Headgate, file: Path) -> None:
    file.write_text(SMALL)
    protections = "\n".join(protection_lines(found_protections(settings_of(SMALL), readable=readable_kv())))

    assert headgate("check") == Said(
        code=0,
        out=f"""\
configuration {hash_of(file)}
listens on 127.0.0.1:8080, for admins on 127.0.0.1:9090
pool small: 1 endpoint of llamacpp, 4 in flight at most, as smollm2
model smollm2: served by small
class interactive: band 0, takes service_tier priority, fast and prompts up to 8,000 tokens, waits 10s at most, \
begins within 2s, 100ms per token
class long: band 1, takes prompts of any length, waits 30s at most, begins within 15s, 200ms per token
class batch: band 2, takes service_tier flex, waits 10m at most, begins within 10m, 1s per token, \
5 % of the work at least, promises cost
the class of a request, by the first of these that applies (`headgate classify REQUEST.json` shows which):
  x-headgate-class  the class that the request names
  service_tier      priority, fast -> interactive; flex -> batch; auto and default choose none
  class_rules[0]    plan critical -> interactive
  tenant            its only class, if it may use only one
  prompt length     up to 8,000 tokens -> interactive; any -> long
callers: 1 tenant, 0 keys; without a key: tenant "demo"
{protections}
""",
        err="",
    )


def test_a_cell_is_explained_without_its_password(headgate: Headgate, file: Path) -> None:
    file.write_text(small_with("cell: {store: 'redis://u:canary-5f1d@cache', members: 3}"))

    said, as_data = headgate("check"), headgate("check", "--json")

    assert (
        "cell headgate: 3 gateways share one queue through redis://u:***@cache:6379/0, this one called after its host "
        "and port; one of them schedules\n"
    ) in said.out
    assert json.loads(as_data.out)["cell"]["store"] == "redis://u:***@cache:6379/0"
    assert "canary-5f1d" not in said.out + said.err + as_data.out + as_data.err


def test_warnings_come_with_the_meaning(headgate: Headgate, file: Path) -> None:
    file.write_text(small_with("  x: {}", "classes: {mine: {band: 0, unnamed: false, pools: small}}").replace(
        "anonymous_tenant: demo\n", ""
    ))  # fmt: skip

    said = headgate("check", "headgate.yaml")

    assert said.code == 0
    assert meaning(said.out).splitlines()[4:] == [
        "class mine: band 0, takes those who name it, waits 30s at most, on small",
        HOW_CLASSES_ARE_CHOSEN,
        "  x-headgate-class  the class that the request names",
        "  service_tier      selects no class; auto and default choose none",
        "  tenant            its only class, if it may use only one",
        "  prompt length     no class takes requests that name neither class nor tier",
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


def test_what_the_scheduler_was_told_is_repeated(headgate: Headgate, file: Path) -> None:
    file.write_text(
        """
        zone: a
        pools:
          small:
            engine: vllm
            in_flight_max: 4
            endpoints: [http://gpu]
            speed: h200-llama-8b
            kv_tokens: 500_000
            prompt_tokens_max: 8000
            output_tokens_min: 100
          large: {engine: vllm, served_model: l, in_flight_max: 4, endpoints: [http://gpu-2], prompt_tokens_min: 8001}
        models:
          m: {pools: [small, large], rungs: [{pools: small, plans: free}], fallbacks: spare}
          spare: {pools: large}
        classes:
          mine:
            band: 0
            ttft: 2s
            tpot: 100ms
            reserve_percent: 10
            promise: cost
            hedges: true
            variants: [{level: 2, caps: {output_tokens: 512}}, {level: 3, model: spare}]
        tenants:
          demo: {limits: {concurrency: 3}}
        anonymous_tenant: demo
        """
    )

    assert meaning(headgate("check").out).splitlines()[2:] == [
        "stands in zone a",
        (
            "pool small: 1 endpoint of vllm, 4 in flight at most, as m, a step takes 4.38ms, 500,000 KV tokens each, "
            "for prompts up to 8,000 tokens, for answers from 100 tokens"
        ),
        "pool large: 1 endpoint of vllm, 4 in flight at most, as l, for prompts from 8,001 tokens",
        "model m: served by small, large, by 1 rung, else as spare",
        "model spare: served by large",
        (
            "class mine: band 0, takes prompts of any length, waits 30s at most, begins within 2s, 100ms per token, "
            "10 % of the places kept free for it, promises cost, gives way at level 2, 3, hedges"
        ),
        HOW_CLASSES_ARE_CHOSEN,
        "  x-headgate-class  the class that the request names",
        "  service_tier      selects no class; auto and default choose none",
        "  tenant            its only class, if it may use only one",
        "  prompt length     any -> mine",
        'callers: 1 tenant, 1 with limits, 0 keys; without a key: tenant "demo"',
    ]


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
    assert found.pop("protections") == as_rows(
        found_protections(settings_of(file.read_text(), os.environ), readable=readable_kv())
    )
    assert found == {
        "ok": True,
        "listen": "127.0.0.1:8080",
        "admin_listen": "127.0.0.1:9090",
        "admin_hosts": [],
        "scaler_listen": None,
        "pools": {
            "small": {
                "engine": "llamacpp",
                "served_model": "smollm2",
                "endpoints": [
                    {
                        "id": "small/127.0.0.1:8081",
                        "url": "http://127.0.0.1:8081",
                        "in_flight_max": 4,
                        "device": "",
                        "zone": "",
                    }
                ],
                "fleet": {"kind": "static"},
                "scaling": None,
                "batching": None,
                **as_json(Pool("small", speed_assumed=True)),
            }
        },
        "models": {"smollm2": {"pools": ["small"], "rungs": [], "fallbacks": []}},
        "classes": {name: as_json(each) for name, each in DEFAULT_CLASSES.items()},
        "class_rules": [as_json(each) for each in DEFAULT_RULES],
        "rules": {
            "retry": as_json(RetryRules()),
            "health": as_json(HealthRules()),
            "headroom": as_json(HeadroomRules()),
            "admission": as_json(AdmissionRules()),
            "routing": as_json(RoutingRules()),
            "shedding": as_json(SheddingRules()),
            "ladder": as_json(LadderRules()),
        },
        "fairness_depth": 1,
        "zone": "",
        "cell": None,
        "database": None,
        "ledger": None,
        "notices": None,
        "tracing": None,
        "records": None,
        "state_folder": None,
        "stage_budgets": {},
        "objectives": {},
        "operators": {},
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


# Configurations that `serve` would reject


WHOLE = small_with(
    "key_secret: a secret of more than sixteen letters",
    "cell: {store: 'rediss://store:6379', members: 2}",
    "database: postgresql://db/headgate",
    "scaler_listen: 127.0.0.1:7070",
    "tracing: {endpoint: 'http://127.0.0.1:4318'}",
)


def test_every_missing_extra_is_named_with_the_fix() -> None:
    missing = list(missing_extras(settings_of(WHOLE), installed=lambda _: False))

    assert [(each.place, each.fix) for each in missing] == [
        ("cell", "pip install 'headgate[cell]'"),
        ("database", "pip install 'headgate[ledger]'"),
        ("tracing", "pip install 'headgate[tracing]'"),
        ("scaler_listen", "pip install 'headgate[kubernetes]'"),
    ]
    assert list(missing_extras(settings_of(WHOLE), installed=lambda _: True)) == []
    assert list(missing_extras(settings_of(SMALL), installed=lambda _: False)) == []


def test_an_unknown_package_counts_as_not_installed() -> None:
    assert not is_installed("no_such_package.no_such_module")
    assert is_installed("json.decoder")


def test_workers_without_a_cell_fail_as_serve_would(headgate: Headgate, file: Path) -> None:
    file.write_text(SMALL)

    said, as_data = headgate("check", "--workers", "2"), headgate("check", "--workers", "2", "--json")

    assert (said.code, as_data.code) == (1, 1)
    assert "names no cell" in said.err
    assert "add cell: {store: redis://HOST:PORT}" in said.err
    assert [each["place"] for each in json.loads(as_data.out)["problems"]] == ["--workers"]
    assert headgate("check").code == 0


def test_check_with_connect_fails_if_the_store_is_unreachable(headgate: Headgate, file: Path) -> None:
    file.write_text(small_with(f"cell: {{store: 'redis://127.0.0.1:{free_port()}', members: 2}}"))

    assert headgate("check").code == 0
    said = headgate("check", "--connect")
    assert said.code == 1
    assert "nothing listens" in said.err
    assert "start it" in said.err
