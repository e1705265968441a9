"""Can an operator do all of it from the command line, and is every refusal told with the next step?"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testing.gateway import Config, gateway_process
from testing.postgres import postgres
from tests.ledger.databases import migrated
from tests.ledger.test_gateway import config_with


def headgate(*arguments: str, folder: Path, key: str | None = "hg-operator") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "HEADGATE_ADMIN_KEY"}
    if key is not None:
        environment["HEADGATE_ADMIN_KEY"] = key
    command = [sys.executable, "-m", "headgate.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=30, check=False)


def verbs_in(folder: Path) -> tuple[Callable[..., Any], Callable[..., str]]:
    """What a verb says that does its work, and why one does not."""

    def done(*arguments: str) -> Any:
        result = headgate(*arguments, "--json", folder=folder)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def refused(*arguments: str, key: str | None = "hg-operator") -> str:
        result = headgate(*arguments, folder=folder, key=key)
        assert result.returncode == 1, result.stdout
        return result.stderr

    return done, refused


async def test_a_key_from_its_making_to_its_end(tmp_path: Path) -> None:
    await asyncio.to_thread(_a_key_from_its_making_to_its_end, tmp_path)


def _a_key_from_its_making_to_its_end(folder: Path) -> None:
    done, refused = verbs_in(folder)
    with postgres() as server:
        config = config_with("http://127.0.0.1:9", server.url)
        (folder / "headgate.yaml").write_text(json.dumps(config))
        assert "no gateway answers" in refused("tenants", "list")
        assert "2 steps applied" in headgate("ledger", "migrate", folder=folder).stdout
        assert "nothing to do" in headgate("ledger", "migrate", "--config", "headgate.yaml", folder=folder).stdout
        with gateway_process(config, folder):
            assert "HEADGATE_ADMIN_KEY" in refused("tenants", "list", key=None)
            assert "no key of an operator" in refused("tenants", "list", key="hg-filed")
            assert 'lacks the permission "keys"' in refused("tenants", "create", "acme", key="hg-reader")
            assert "create it first" in refused("keys", "create", "acme/search/ci")
            done("tenants", "create", "acme", "--plan", "critical")
            done("tenants", "create", "acme/search", "--class", "interactive")
            made = headgate("keys", "create", "acme/search/ci", "--expires-in", "90d", folder=folder)
            assert made.stdout.startswith("hg-")
            rotated = done("keys", "rotate", "acme/search/ci", "--overlap", "0")
            assert rotated["secret"].startswith("hg-")
            listed = headgate("keys", "list", folder=folder)
            assert "expired" in listed.stdout
            assert "working" in listed.stdout
            assert made.stdout.strip() not in listed.stdout + listed.stderr
            revoked = headgate("keys", "revoke", "acme/search/ci", folder=folder).stdout
            assert "2 revoked" in revoked
            assert "as soon as they hear of it" in revoked
            assert "no key of it was working" in headgate("keys", "revoke", "acme/search/ci", folder=folder).stdout
            order = done("operate", "hold", "batch", "--for", "15m", "--reason", "a test")
            assert "batch" in headgate("operate", "list", folder=folder).stdout
            done("operate", "end", order["order"])
            assert "no order is in force" in headgate("operate", "list", folder=folder).stderr
            assert "names at least one of its limits" in refused("operate", "throttle", "acme", "--for", "1h")
            _the_audit_log_is_read_page_by_page(folder)
            assert done("tenants", "remove", "acme")["removed"] == 3


def _the_audit_log_is_read_page_by_page(folder: Path) -> None:
    newest = headgate("operate", "audit", "--limit", "1", folder=folder)
    assert "order.end" in newest.stdout
    assert not re.search("[0-9]{12}", newest.stdout), "a time that nobody can read"
    [before] = re.findall("--before ([0-9]+)", newest.stderr)
    next_one = headgate("operate", "audit", "--limit", "1", "--before", before, folder=folder).stdout
    assert "order.hold" in next_one
    assert "order.end" not in next_one
    assert "nothing before it" in headgate("operate", "audit", "--before", "1", folder=folder).stderr


async def test_a_budget_from_its_setting_to_its_end(tmp_path: Path) -> None:
    with postgres() as server:
        config = config_with("http://127.0.0.1:9", await migrated(server.url))
        await asyncio.to_thread(_a_budget_from_its_setting_to_its_end, config, tmp_path)


def _a_budget_from_its_setting_to_its_end(config: Config, folder: Path) -> None:
    done, refused = verbs_in(folder)
    with gateway_process(config, folder):
        done("tenants", "create", "acme")
        assert done("budgets", "set", "acme", "month", "2000.5", "--soft")["usd"] == "2000.5"
        assert "2000.5" in headgate("budgets", "list", folder=folder).stdout
        assert "tenant:acme" in headgate("budgets", "show", "acme/search", folder=folder).stdout
        assert "more than 0" in refused("budgets", "set", "acme", "day", "0")
        assert "any amount a month" in headgate("budgets", "remove", "acme", "month", folder=folder).stdout
        assert "has no budget" in refused("budgets", "remove", "acme", "month")
        nobody = headgate("budgets", "show", "nobody", folder=folder).stderr
        assert 'no budget counts for "nobody"' in nobody
        assert "cell" not in nobody
        assert "tenants.filed.budgets" in refused("budgets", "set", "filed", "day", "5")


def test_a_length_of_time_that_is_none_is_told(tmp_path: Path) -> None:
    result = headgate("operate", "hold", "batch", "--for", "soon", folder=tmp_path)

    assert result.returncode == 2
    assert "such as 12h" in result.stderr


def test_a_file_without_a_database_says_where_to_name_it(tmp_path: Path) -> None:
    (tmp_path / "headgate.yaml").write_text("pools: {}\nmodels: {}\n")

    assert "database.url" in headgate("ledger", "migrate", folder=tmp_path).stderr
