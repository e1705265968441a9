"""Output of `headgate check`."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from headgate.config.class_rules import DEFAULT_RULES
from headgate.config.classes import DEFAULT_CLASSES
from headgate.config.extras import is_installed, missing_extras
from headgate.config.load import load
from headgate.config.protections import protection_lines, protection_rows
from headgate.config.protections import protections as found_protections
from headgate.engines.dialects import DIALECTS, engines_reporting_kv
from headgate.model.engine_profile import PROFILES
from headgate.model.policy import (
    AdmissionRules,
    DegradationRules,
    HeadroomRules,
    HealthRules,
    Pool,
    RetryRules,
    RoutingRules,
    SheddingRules,
)
from testing.ports import free_port
from tests.cli.conftest import Headgate, Said
from tests.config.builders import SMALL, settings_of, small_with

HOW_CLASSES_ARE_CHOSEN = (
    "class of a request, by the first rule that applies (`headgate classify REQUEST.json` shows which):"
)
DIGEST = "hmac-sha256:" + "ab" * 32


def as_json(value: object) -> dict[str, object]:
    """JSON for one part of the policy, excluding its name."""
    told = json.loads(json.dumps(asdict(value)))
    told.pop("name", None)
    return told


def hash_of(file: Path) -> str:
    return load(file, {}, engines=DIALECTS, profiles=PROFILES).hash


def meaning(out: str) -> str:
    """The output, excluding the list of protections."""
    return out.partition("protections:\n")[0]


def test_valid_file_is_summarized(headgate: Headgate, file: Path) -> None:
    file.write_text(SMALL)
    protections = "\n".join(
        protection_lines(found_protections(settings_of(SMALL), kv_readable_engines=engines_reporting_kv()))
    )

    assert headgate("check") == Said(
        code=0,
        out=f"""\
configuration {hash_of(file)}
listens on 127.0.0.1:8080; admin listener on 127.0.0.1:9090
pool small: 1 llamacpp endpoint, at most 4 in flight, model smollm2
model smollm2: served by small
class interactive: band 0, for service_tier priority, fast and prompts up to 8,000 tokens, waits at most 10s, \
ttft 2s, tpot 100ms
class long: band 1, for prompts of any length, waits at most 30s, ttft 15s, tpot 200ms
class batch: band 2, for service_tier flex, waits at most 10m, ttft 10m, tpot 1s, \
at least 5 % of engine time, optimizes for cost
class of a request, by the first rule that applies (`headgate classify REQUEST.json` shows which):
  x-headgate-class  the class named in the request
  service_tier      priority, fast -> interactive; flex -> batch; auto and default choose none
  class_rules[0]    plan critical -> interactive
  tenant            its only class, if it may use only one
  prompt length     up to 8,000 tokens -> interactive; any -> long
callers: 1 tenant, 0 keys; without a key: tenant "demo"
{protections}
""",
        err="",
    )


def test_cell_is_printed_without_store_password(headgate: Headgate, file: Path) -> None:
    file.write_text(small_with("cell: {store: 'redis://u:canary-5f1d@cache', member_count: 3}"))

    said, as_data = headgate("check"), headgate("check", "--json")

    assert (
        "cell headgate: 3 gateways with a shared queue in redis://u:***@cache:6379/0, named by host and port; "
        "one of them is the scheduler\n"
    ) in said.out
    assert json.loads(as_data.out)["cell"]["store"] == "redis://u:***@cache:6379/0"
    assert "canary-5f1d" not in said.out + said.err + as_data.out + as_data.err


def test_warnings_are_printed_with_the_summary(headgate: Headgate, file: Path) -> None:
    mine = "classes: {mine: {priority_band: 0, accepts_unclassified: false, pools: small}}"
    file.write_text(small_with("  x: {}", mine).replace("anonymous_tenant: demo\n", ""))

    said = headgate("check", "--config", "headgate.yaml")

    assert said.code == 0
    assert meaning(said.out).splitlines()[4:] == [
        "class mine: band 0, for requests that select it, waits at most 30s, on small",
        HOW_CLASSES_ARE_CHOSEN,
        "  x-headgate-class  the class named in the request",
        "  service_tier      selects no class; auto and default choose none",
        "  tenant            its only class, if it may use only one",
        "  prompt length     no class accepts requests that name neither class nor tier",
        "callers: 2 tenants, 0 keys",
        (
            "warning: headgate.yaml:6: tenants.demo: has no key and is not the anonymous tenant, so no "
            "request can belong to it; `headgate keys new --tenant demo` creates one"
        ),
        (
            "warning: headgate.yaml:7: tenants.x: has no key and is not the anonymous tenant, so no request "
            "can belong to it; `headgate keys new --tenant x` creates one"
        ),
        (
            "warning: headgate.yaml:8: classes: no class accepts requests without a class or tier; set "
            "accepts_unclassified: true for one of them"
        ),
    ]


def test_caps_that_differ_from_defaults_are_shown(headgate: Headgate, file: Path) -> None:
    caps = "{prompt_tokens: 32000, trim_prompt: true, n: 1, prompt_logprobs: unlimited, reasoning_effort: low}"
    file.write_text(small_with(f"classes: {{mine: {{priority_band: 0, caps: {caps}}}}}"))

    assert headgate("check").out.splitlines()[4] == (
        "class mine: band 0, for prompts of any length, waits at most 30s, prompt_tokens 32,000, trim_prompt true, "
        "n 1, prompt_logprobs unlimited, reasoning_effort low"
    )


def test_scheduling_settings_are_shown(headgate: Headgate, file: Path) -> None:
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
          m: {pools: [small, large], tiers: [{pools: small, plans: free}], fallbacks: spare}
          spare: {pools: large}
        classes:
          mine:
            priority_band: 0
            ttft: 2s
            tpot: 100ms
            reserve_percent: 10
            optimize_for: cost
            hedging: true
            degradation_steps: [{level: 2, caps: {output_tokens: 512}}, {level: 3, model: spare}]
        tenants:
          demo: {limits: {concurrency: 3}}
        anonymous_tenant: demo
        """
    )

    assert meaning(headgate("check").out).splitlines()[2:] == [
        "zone a",
        (
            "pool small: 1 vllm endpoint, at most 4 in flight, model m, a step takes 4.38ms, 500,000 KV "
            "tokens per endpoint, for prompts up to 8,000 tokens, for outputs from 100 tokens"
        ),
        "pool large: 1 vllm endpoint, at most 4 in flight, model l, for prompts from 8,001 tokens",
        "model m: served by small, large, 1 tier, fallbacks spare",
        "model spare: served by large",
        (
            "class mine: band 0, for prompts of any length, waits at most 30s, ttft 2s, tpot 100ms, 10 % of "
            "slots reserved, optimizes for cost, degrades at level 2, 3, hedging"
        ),
        HOW_CLASSES_ARE_CHOSEN,
        "  x-headgate-class  the class named in the request",
        "  service_tier      selects no class; auto and default choose none",
        "  tenant            its only class, if it may use only one",
        "  prompt length     any -> mine",
        'callers: 1 tenant, 1 with limits, 0 keys; without a key: tenant "demo"',
    ]


def test_problems_go_to_stderr_with_exit_code_1(headgate: Headgate, file: Path) -> None:
    file.write_text(small_with("drain: 30s", "health: {ejection_time: 0s}"))

    assert headgate("check") == Said(
        code=1,
        out="",
        err="""\
headgate.yaml:8: drain: unknown key; did you mean "drain_grace"?
headgate.yaml:9: health.ejection_time: must be at least 1ms, not 0s
""",
    )


def test_missing_file_is_reported(headgate: Headgate) -> None:
    assert headgate("check", "--config", "other.yaml") == Said(
        code=1,
        out="",
        err=(
            "other.yaml: does not exist; specify the configuration file with --config, or create one with `headgate "
            "init`\n"
        ),
    )


def test_json_output_of_valid_file_is_one_object(
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
    assert found.pop("protections") == protection_rows(
        found_protections(settings_of(file.read_text(), os.environ), kv_readable_engines=engines_reporting_kv())
    )
    assert found == {
        "ok": True,
        "listen": "127.0.0.1:8080",
        "admin_listen": "127.0.0.1:9090",
        "listen_tls": None,
        "admin_listen_tls": None,
        "admin_allowed_hosts": [],
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
        "models": {
            "smollm2": {
                "pools": ["small"],
                "tiers": [],
                "fallbacks": [],
                "adapter": "",
                "routes": [],
                "sticky": "request",
                "overflow": None,
            }
        },
        "classes": {name: as_json(each) for name, each in DEFAULT_CLASSES.items()},
        "class_rules": [as_json(each) for each in DEFAULT_RULES],
        "rules": {
            "retry": as_json(RetryRules()),
            "health": as_json(HealthRules()),
            "headroom": as_json(HeadroomRules()),
            "admission": as_json(AdmissionRules()),
            "routing": as_json(RoutingRules()),
            "shedding": as_json(SheddingRules()),
            "degradation": as_json(DegradationRules()),
        },
        "fairness_depth": 1,
        "reload": "watch",
        "zone": "",
        "cell": None,
        "database": None,
        "issuers": [],
        "operator_tokens": None,
        "ledger": None,
        "notifications": None,
        "tracing": None,
        "records": None,
        "audit": None,
        "state_directory": None,
        "stage_budgets": {},
        "objectives": {},
        "operators": {},
        "tenants": 1,
        "keys": 1,
        "anonymous_tenant": "demo",
        "warnings": [],
    }


def test_json_output_of_problems_is_one_object(headgate: Headgate, file: Path) -> None:
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
    "cell: {store: 'rediss://store:6379', member_count: 2}",
    "database: postgresql://db/headgate",
    "scaler_listen: 127.0.0.1:7070",
    "tracing: {endpoint: 'http://127.0.0.1:4318'}",
)


def test_missing_extras_are_reported_with_the_fix() -> None:
    missing = list(missing_extras(settings_of(WHOLE), installed=lambda _: False))

    assert [(each.place, each.fix) for each in missing] == [
        ("cell", "pip install 'headgate[cell]'"),
        ("database", "pip install 'headgate[ledger]'"),
        ("tracing", "pip install 'headgate[tracing]'"),
        ("scaler_listen", "pip install 'headgate[kubernetes]'"),
    ]
    assert list(missing_extras(settings_of(WHOLE), installed=lambda _: True)) == []
    assert list(missing_extras(settings_of(SMALL), installed=lambda _: False)) == []


def test_unknown_package_is_treated_as_not_installed() -> None:
    assert not is_installed("no_such_package.no_such_module")
    assert is_installed("json.decoder")


def test_check_rejects_workers_without_a_cell_like_serve(headgate: Headgate, file: Path) -> None:
    file.write_text(SMALL)

    said, as_data = headgate("check", "--workers", "2"), headgate("check", "--workers", "2", "--json")

    assert (said.code, as_data.code) == (1, 1)
    assert "has no cell" in said.err
    assert "add cell: {store: redis://HOST:PORT}" in said.err
    assert [each["place"] for each in json.loads(as_data.out)["problems"]] == ["--workers"]
    assert headgate("check").code == 0


def test_check_with_connect_fails_if_the_store_is_unreachable(headgate: Headgate, file: Path) -> None:
    file.write_text(small_with(f"cell: {{store: 'redis://127.0.0.1:{free_port()}', member_count: 2}}"))

    assert headgate("check").code == 0
    said = headgate("check", "--connect")
    assert said.code == 1
    assert "no process is listening" in said.err
    assert "start it" in said.err
