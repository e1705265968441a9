"""Can an operator do all of it from the command line, and is every refusal told with the next step?"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.gateway import gateway_process
from testing.postgres import Postgres, postgres
from tests.cli.conftest import Headgate, Said
from tests.ledger.test_gateway import config_with


class Operator:
    """An operator who runs verbs in a folder, mostly with a key."""

    def __init__(self, headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> None:
        self._headgate = headgate
        self._monkeypatch = monkeypatch

    def says(self, *arguments: str, key: str | None = "hg-operator") -> Said:
        with self._monkeypatch.context() as patch:
            patch.delenv("HEADGATE_ADMIN_KEY", raising=False)
            if key is not None:
                patch.setenv("HEADGATE_ADMIN_KEY", key)
            return self._headgate(*arguments)

    def done(self, *arguments: str) -> Any:
        """The result of a verb that does its work."""
        said = self.says(*arguments, "--json")
        assert said.code == 0, said.err
        return json.loads(said.out)

    def refused(self, *arguments: str, key: str | None = "hg-operator") -> str:
        """The reason of a verb that does not."""
        said = self.says(*arguments, key=key)
        assert said.code == 1, said.out
        return said.err


@pytest.fixture
def operator(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> Operator:
    return Operator(headgate, monkeypatch)


@pytest.fixture
def server() -> Iterator[Postgres]:
    with postgres(options=("fsync=off",)) as running:
        yield running


@pytest.mark.process
def test_operator_creates_rotates_and_revokes_a_key(operator: Operator, server: Postgres, file: Path) -> None:
    done, refused, says = operator.done, operator.refused, operator.says
    config = config_with("http://127.0.0.1:9", server.url)
    file.write_text(json.dumps(config))
    assert "no gateway answers" in refused("tenants", "list")
    assert "2 steps applied" in says("ledger", "migrate").out
    assert "nothing to do" in says("ledger", "migrate", "--config", "headgate.yaml").out
    with gateway_process(config, file.parent):
        assert "HEADGATE_ADMIN_KEY" in refused("tenants", "list", key=None)
        assert "no key of an operator" in refused("tenants", "list", key="hg-filed")
        assert 'lacks the permission "keys"' in refused("tenants", "create", "acme", key="hg-reader")
        assert "create it first" in refused("keys", "create", "acme/search/ci")
        done("tenants", "create", "acme", "--plan", "critical")
        done("tenants", "create", "acme/search", "--class", "interactive")
        made = says("keys", "create", "acme/search/ci", "--expires-in", "90d")
        assert made.out.startswith("hg-")
        rotated = done("keys", "rotate", "acme/search/ci", "--overlap", "0")
        assert rotated["secret"].startswith("hg-")
        listed = says("keys", "list")
        assert "expired" in listed.out
        assert "working" in listed.out
        assert made.out.strip() not in listed.out + listed.err
        revoked = says("keys", "revoke", "acme/search/ci").out
        assert "2 revoked" in revoked
        assert "as soon as they hear of it" in revoked
        assert "no key of it was working" in says("keys", "revoke", "acme/search/ci").out
        order = done("operate", "hold", "batch", "--for", "15m", "--reason", "a test")
        assert "batch" in says("operate", "list").out
        done("operate", "end", order["order"])
        assert "no order is in force" in says("operate", "list").err
        assert "names at least one of its limits" in refused("operate", "throttle", "acme", "--for", "1h")
        _the_audit_log_is_read_page_by_page(operator)
        assert done("tenants", "remove", "acme")["removed"] == 3


def _the_audit_log_is_read_page_by_page(operator: Operator) -> None:
    says = operator.says
    newest = says("operate", "audit", "--limit", "1")
    assert "order.end" in newest.out
    assert not re.search("[0-9]{12}", newest.out), "a time that nobody can read"
    [before] = re.findall("--before ([0-9]+)", newest.err)
    next_one = says("operate", "audit", "--limit", "1", "--before", before).out
    assert "order.hold" in next_one
    assert "order.end" not in next_one
    assert "nothing before it" in says("operate", "audit", "--before", "1").err


@pytest.mark.process
def test_operator_sets_shows_and_removes_a_budget(operator: Operator, server: Postgres, file: Path) -> None:
    done, refused, says = operator.done, operator.refused, operator.says
    config = config_with("http://127.0.0.1:9", server.url)
    file.write_text(json.dumps(config))
    assert says("ledger", "migrate").code == 0
    with gateway_process(config, file.parent):
        done("tenants", "create", "acme")
        assert done("budgets", "set", "acme", "month", "2000.5", "--soft")["usd"] == "2000.5"
        assert "2000.5" in says("budgets", "list").out
        assert "tenant:acme" in says("budgets", "show", "acme/search").out
        assert "more than 0" in refused("budgets", "set", "acme", "day", "0")
        assert "any amount a month" in says("budgets", "remove", "acme", "month").out
        assert "has no budget" in refused("budgets", "remove", "acme", "month")
        nobody = says("budgets", "show", "nobody").err
        assert 'no budget counts for "nobody"' in nobody
        assert "cell" not in nobody
        assert "tenants.filed.budgets" in refused("budgets", "set", "filed", "day", "5")


def test_a_length_of_time_that_is_none_is_told(headgate: Headgate) -> None:
    said = headgate("operate", "hold", "batch", "--for", "soon")

    assert said.code == 2
    assert "such as 12h" in said.err


def test_a_file_without_a_database_says_where_to_name_it(headgate: Headgate, file: Path) -> None:
    file.write_text("pools: {}\nmodels: {}\n")

    assert "database.url" in headgate("ledger", "migrate").err
