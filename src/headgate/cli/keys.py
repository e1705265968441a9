"""Create, hash, rotate and revoke API keys.

A key is printed once and never stored. The configuration contains only a keyed hash of it. Only the key, the secret or
the hash is written to stdout, so that `export OPENAI_API_KEY=$(headgate keys new …)` works. Instructions go to stderr.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headgate.cli.input.argument_types import CONFIG_FILE, add_actions, add_gateway, add_page, key_path

KEY_SECRET_VARIABLE = "HEADGATE_KEY_SECRET"

_NO_SECRET_MESSAGE = f"""\
headgate: no secret is set. The gateway and this command need the same one to hash keys:
  export {KEY_SECRET_VARIABLE}=$(headgate keys secret)
Keep it: existing keys do not work with a different secret."""


@dataclass(frozen=True, slots=True)
class _Secret:
    value: bytes = field(repr=False)
    in_file: bool


class _OperatorExists(Exception):
    """The file already contains a key with this name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser)
    new = add("new", "Create a key for a tenant in the configuration file and print it once.")
    new.add_argument("--tenant", required=True, metavar="NAME", help="Tenant in the configuration (required).")
    operator = add("operator", "Create a key for `headgate operate` and print it once.")
    operator.add_argument(
        "--name", default="operator", metavar="NAME", help="Operator name in the audit log (default operator)."
    )
    access = operator.add_mutually_exclusive_group()
    access.add_argument(
        "--permissions",
        type=_permissions,
        default=("read", "operate"),
        metavar="LIST",
        help="Comma-separated permissions (default read,operate).",
    )
    access.add_argument("--role", choices=("viewer", "operator", "accountant", "admin"), help="Role of the key.")
    hashing = add("hash", "Read a key from stdin and print its hash.")
    for each in (new, operator):
        each.add_argument("--write", action="store_true", help="Write the key hash to the configuration file.")
    for each in (new, operator, hashing):
        each.add_argument(
            "--config", type=Path, metavar="FILE", help=f"Configuration file (default {CONFIG_FILE}, if it exists)."
        )
    add("secret", f"Print a new secret for {KEY_SECRET_VARIABLE}.")
    _add_database_actions(add)


def _add_database_actions(add: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Actions on keys in the database, through a running gateway."""
    from headgate.cli.input.admin_request import duration_s
    from headgate.cli.tenants import add_tenant_options

    create = add("create", "Create a key in the database and print it once.")
    rotate = add("rotate", "Replace a key in the database; the old one keeps working for --overlap.")
    revoke = add("revoke", "Revoke a key in the database.")
    listing = add("list", "Show the keys in the database, without their values.")
    for each in (create, rotate, revoke):
        each.add_argument("key", type=key_path, metavar="PATH", help="ORGANISATION/PROJECT/KEY.")
    for each in (create, rotate):
        each.add_argument(
            "--expires-in", type=duration_s, metavar="DURATION", help="Lifetime, such as 90d (default: no expiry)."
        )
    add_tenant_options(create)
    rotate.add_argument(
        "--overlap",
        type=lambda text: 0 if text == "0" else duration_s(text),
        default=3_600,
        metavar="DURATION",
        help="How long older keys keep working, such as 0 or 24h (default 1h).",
    )
    add_page(listing, "keys")
    for each in (create, rotate, revoke, listing):
        add_gateway(each)


def run(args: argparse.Namespace) -> int:
    match args.action:
        case "create" | "rotate" | "revoke" | "list":
            return _run_database_action(args)
        case "secret":
            return _secret()
        case "hash":
            return _hash(args.config)
        case "operator":
            return _operator(args.name, args.role or args.permissions, args.config, write=args.write)
        case _:
            return _generate(args.tenant, args.config, write=args.write)


def _run_database_action(args: argparse.Namespace) -> int:
    from headgate.cli.input.admin_request import (
        AdminRequestFailed,
        call_admin_api,
        print_failure,
        print_json,
        print_table,
    )
    from headgate.cli.tenants import tenant_fields

    body: dict[str, object]
    match args.action:
        case "create":
            body = {"key": args.key, "expires_in_s": args.expires_in, **tenant_fields(args)}
        case "rotate":
            body = {"key": args.key, "expires_in_s": args.expires_in, "overlap_s": args.overlap}
        case "revoke":
            body = {"key": args.key}
        case _:
            body = {"under": args.under, "after": args.after, "limit": args.limit}
    try:
        answer = call_admin_api(args, f"keys/{args.action}", body)
    except AdminRequestFailed as problem:
        return print_failure(problem)
    if args.json:
        print_json(answer)
    elif args.action == "list":
        columns = ("key", "state", "created_at", "expires_at", "revoked_at")
        hint = "no keys in the database; create one with `headgate keys create ORG/PROJECT/KEY`"
        print_table(answer["data"], columns, empty=hint)
        if answer["next"]:
            _print_stderr(f"more keys: --after {answer['next']}")
    elif args.action == "revoke":
        print(_revocation_text(args.key, answer["revoked"]))
    else:
        _print_stderr(f"new key for {args.key}; it is shown only once and is not stored:")
        print(answer["secret"])
    return 0


def _revocation_text(key: str, count: int) -> str:
    if not count:
        return f"{key}: nothing to revoke, because it has no active key"
    delayed = "a gateway that has lost its database connection accepts them until it reconnects"
    return f"{key}: {count} revoked; gateways reject them within moments; {delayed}"


def _secret() -> int:
    import secrets

    print(secrets.token_urlsafe(32))
    return 0


def _hash(config: Path | None) -> int:
    from headgate.wire.keys import digest, format_digest

    secret = _key_secret(config)
    if secret is None:
        return 1
    if sys.stdin.isatty():
        from getpass import getpass

        key = getpass("key: ")
    else:
        key = sys.stdin.readline()
    if not key.strip():
        return _problem("no key on stdin; write one key to stdin")
    print(format_digest(digest(secret.value, key.strip())))
    return 0


def _generate(tenant: str, config: Path | None, *, write: bool) -> int:
    import secrets

    from headgate.config.edit import add_item
    from headgate.config.references import is_tenant_path
    from headgate.wire.keys import digest, format_digest

    if not is_tenant_path(tenant):
        problem = "use up to 64 letters, digits, and . _ -, or several such names separated by /"
        return _problem(f'"{tenant}" is not a valid tenant name; {problem}')
    secret = _key_secret(config)
    if secret is None:
        return 1
    key = "hg-" + secrets.token_urlsafe(32)
    known = format_digest(digest(secret.value, key))
    file = config or CONFIG_FILE
    if write:
        if not _write(file, secret, lambda text: add_item(text, ("tenants", tenant, "keys"), known)):
            return 1
        _print_stderr(f'wrote the hash of a new key for tenant "{tenant}" to {file}; {_activation_hint(secret)}')
    else:
        snippet = ["tenants:", f"  {tenant}:", "    keys:", f'      - "{known}"']
        _print_stderr(f"add this to {file} (or use --write), then use the key:\n{_snippet(snippet, secret)}")
    print(key)
    return 0


def _operator(name: str, access: str | Sequence[str], config: Path | None, *, write: bool) -> int:
    """Creates an operator key, with or without a database. `access` is a role or a list of permissions."""
    import secrets

    from headgate.config.edit import add_item, add_value, has_value
    from headgate.config.references import is_name
    from headgate.wire.keys import digest, format_digest

    if not is_name(name):
        return _problem(f'"{name}" is not a valid operator name; use up to 64 letters, digits, and . _ -')
    secret = _key_secret(config)
    if secret is None:
        return 1
    key = "hg-" + secrets.token_urlsafe(32)
    known = format_digest(digest(secret.value, key))
    file, place = config or CONFIG_FILE, ("admin_keys", name)

    def edited(text: str) -> str:
        if has_value(text, place):
            raise _OperatorExists(
                f'{file} already has an operator "{name}"; choose another --name, or remove admin_keys.{name}'
            )
        text = add_value(text, (*place, "key"), known)
        if isinstance(access, str):
            return add_value(text, (*place, "role"), access)
        for permission in access:
            text = add_item(text, (*place, "permissions"), permission)
        return text

    if write:
        if not _write(file, secret, edited):
            return 1
        _print_stderr(f'wrote the hash of a new key for operator "{name}" to {file}; {_activation_hint(secret)}')
        _print_stderr("export the key as HEADGATE_ADMIN_KEY; test it with `headgate operate list`")
    else:
        given = f"role: {access}" if isinstance(access, str) else f"permissions: [{', '.join(access)}]"
        snippet = ["admin_keys:", f"  {name}:", f'    key: "{known}"', f"    {given}"]
        _print_stderr(f"add this to {file} (or use --write), then use the key:\n{_snippet(snippet, secret)}")
    print(key)
    return 0


def _activation_hint(secret: _Secret) -> str:
    if secret.in_file:
        return "send SIGHUP to a running gateway to load it"
    return f"key_secret was added too, so restart the gateway with {KEY_SECRET_VARIABLE} in its environment"


def _permissions(text: str) -> tuple[str, ...]:
    from headgate.config.database import PERMISSIONS

    named = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not named or not set(named) <= set(PERMISSIONS):
        raise argparse.ArgumentTypeError(f"use a comma-separated list of {', '.join(PERMISSIONS)}")
    return named


def _key_secret(config: Path | None) -> _Secret | None:
    """The secret from the configuration or, failing that, from the environment. If there is none, prints the next step
    and returns None.
    """
    from headgate.config.load import key_secret
    from headgate.config.problems import ConfigErrors

    file = config or CONFIG_FILE
    if config is not None or file.exists():
        try:
            named = key_secret(file, os.environ)
        except ConfigErrors as errors:
            _print_stderr(str(errors))
            if KEY_SECRET_VARIABLE in str(errors):
                _print_stderr(_NO_SECRET_MESSAGE)
            return None
        if named is not None:
            return _Secret(named, in_file=True)
    if not os.environ.get(KEY_SECRET_VARIABLE):
        _print_stderr(_NO_SECRET_MESSAGE)
        return None
    return _Secret(os.environ[KEY_SECRET_VARIABLE].encode(), in_file=False)


def _write(file: Path, secret: _Secret, edited: Callable[[str], str]) -> bool:
    """Writes the text that `edited` returns, and the secret if it is new. On failure, prints the reason and returns
    False.
    """
    from headgate.config.edit import EditNotPossible, add_value
    from headgate.config.load import read_text
    from headgate.config.problems import ConfigErrors

    try:
        text = read_text(file)
        if not secret.in_file:
            text = add_value(text, ("key_secret",), f"${{{KEY_SECRET_VARIABLE}}}")
        _replace(file, edited(text))
    except _OperatorExists as taken:
        _problem(str(taken))
    except ConfigErrors as errors:
        _print_stderr(str(errors))
    except EditNotPossible:
        _problem(f"the layout of {file} cannot be edited automatically; run without --write and edit it by hand")
    except OSError as error:
        _problem(f"cannot write {file}: {error.strerror}")
    else:
        return True
    return False


def _replace(file: Path, text: str) -> None:
    """Replaces the file atomically."""
    import shutil

    target = file.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.touch(mode=0o600)
        draft.write_text(text, encoding="utf-8", newline="")
        shutil.copymode(target, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _snippet(lines: Sequence[str], secret: _Secret) -> str:
    return "\n".join(lines if secret.in_file else [f'key_secret: "${{{KEY_SECRET_VARIABLE}}}"', *lines])


def _print_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def _problem(text: str) -> int:
    _print_stderr(f"headgate: {text}")
    return 1
