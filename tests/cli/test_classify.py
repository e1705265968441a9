"""Output of `headgate classify`."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Headgate
from tests.config.builders import small_with

CONFIG = small_with(
    "class_rules:",
    "  - {class: batch, metadata: {purpose: [eval]}}",
    "  - {class: interactive, plans: [critical]}",
).replace("demo: {}", "demo: {}\n  acme: {plan: critical}\n  nightly: {classes: [batch]}")


@pytest.fixture
def classify(headgate: Headgate, file: Path, tmp_path: Path) -> Any:
    """Runs `headgate classify` for a request with the given fields."""
    file.write_text(CONFIG)

    def ask(*arguments: str, **fields: Any) -> Any:
        body = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], **fields}
        (tmp_path / "request.json").write_text(json.dumps({name: each for name, each in body.items() if each}))
        return headgate("classify", "request.json", *arguments)

    return ask


def test_applied_rule_is_marked_in_the_table(classify: Any) -> None:
    said = classify("--tenant", "acme", stream=True)

    assert (said.code, said.err) == (0, "")
    assert (
        said.out
        == """\
chat, streamed, about 8 prompt tokens, tenant acme (plan critical)
   x-headgate-class  the class named in the request
   service_tier      priority, fast -> interactive; flex -> batch; auto and default choose none
   class_rules[0]    metadata purpose = eval -> batch
-> class_rules[1]    plan critical -> interactive
   tenant            its only class, if it may use only one
   prompt length     up to 8,000 tokens -> interactive; any -> long
class interactive, by class_rules[1]
"""
    )


@pytest.mark.parametrize(
    ("arguments", "fields", "last"),
    [
        ((), {}, "class interactive, by prompt length"),
        ((), {"messages": [{"role": "user", "content": "x" * 40_000}]}, "class long, by prompt length"),
        ((), {"service_tier": "auto"}, "class interactive, by prompt length"),
        ((), {"service_tier": "flex"}, "class batch, by service_tier"),
        ((), {"metadata": {"purpose": "eval"}}, "class batch, by class_rules[0]"),
        (("--plan", "critical"), {}, "class interactive, by class_rules[1]"),
        (("--tenant", "nightly"), {}, "class batch, by tenant"),
        (("--class", "long"), {}, "class long, by x-headgate-class"),
        (("--tenant", "db/team", "--plan", "critical"), {}, "class interactive, by class_rules[1]"),
        (("--api", "embeddings"), {"messages": None, "input": "hi"}, "class interactive, by prompt length"),
        ((), {"messages": None, "prompt": "hi"}, "class interactive, by prompt length"),
    ],
)
def test_every_step_in_the_table_can_select_the_class(
    classify: Any, arguments: tuple[str, ...], fields: dict[str, Any], last: str
) -> None:
    said = classify(*arguments, **fields)

    assert (said.code, said.out.splitlines()[-1]) == (0, last)


@pytest.mark.parametrize(
    ("arguments", "fields", "reason"),
    [
        ((), {"service_tier": "gold"}, 'unknown service_tier "gold"; known values: auto, default'),
        (("--class", "gold"), {}, 'class "gold" does not exist'),
        (("--tenant", "nightly", "--class", "long"), {}, "this API key may not use class"),
        ((), {"model": "other"}, 'model "other" does not exist'),
    ],
)
def test_classify_shows_why_a_request_would_be_rejected(
    classify: Any, arguments: tuple[str, ...], fields: dict[str, Any], reason: str
) -> None:
    said = classify(*arguments, **fields)

    assert said.code == 1
    assert f"rejected: {reason}" in said.out


def test_json_output_is_one_object(classify: Any) -> None:
    assert json.loads(classify("--json", "--tenant", "acme").out) == {
        "class": "interactive",
        "by": "rule",
        "rule": 1,
        "rejected": None,
        "tenant": "acme",
        "plan": "critical",
        "api": "chat",
        "stream": False,
    }
    assert json.loads(classify("--json", service_tier="gold").out)["class"] is None


@pytest.mark.parametrize(
    ("arguments", "fields", "problem"),
    [
        (("--tenant", "nobody"), {}, 'has no tenant "nobody"; if it is in the database, add --plan'),
        ((), {"messages": None, "input": "hi"}, "the API cannot be derived from the body; set --api"),
        ((), {"messages": "hi"}, "is not a valid request"),
    ],
)
def test_unreadable_request_is_reported_with_the_next_step(
    classify: Any, arguments: tuple[str, ...], fields: dict[str, Any], problem: str
) -> None:
    said = classify(*arguments, **fields)

    assert (said.code, said.out) == (2, "")
    assert problem in said.err


def test_tenant_is_required_without_an_anonymous_tenant(headgate: Headgate, file: Path, tmp_path: Path) -> None:
    file.write_text(CONFIG.replace("anonymous_tenant: demo\n", ""))
    (tmp_path / "request.json").write_text("{}")

    said = headgate("classify", "request.json")
    assert said.code == 2
    assert "headgate.yaml has no anonymous_tenant; specify the tenant with --tenant" in said.err


def test_missing_files_are_named_in_the_error(headgate: Headgate, file: Path) -> None:
    assert headgate("classify", "request.json").code == 1
    file.write_text(CONFIG)

    assert "cannot read request.json" in headgate("classify", "request.json").err


def test_request_is_read_from_stdin(headgate: Headgate, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(CONFIG)
    body = b'{"model": "smollm2", "prompt": "hi"}'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(body)))

    assert headgate("classify", "-").out.splitlines()[-1] == "class interactive, by prompt length"
