"""How does a caller get a key, and the configuration its hash?

A key is shown once and stored nowhere; the configuration holds its hash under a secret. Only the
key, the secret or the hash goes to stdout, so that `export OPENAI_API_KEY=$(headgate keys new …)`
works; what to do with it goes to stderr.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

VARIABLE = "HEADGATE_KEY_SECRET"

_NO_SECRET = f"""\
headgate: there is no secret to hash keys under. The gateway and this command must know the same one:
  export {VARIABLE}=$(headgate keys secret)
Keep it: under another secret every key made before is worthless."""


@dataclass(frozen=True, slots=True)
class _Secret:
    value: bytes = field(repr=False)
    in_file: bool


class _Taken(Exception):
    """The file already has a key of this name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="make a key for a tenant and print it, this once")
    new.add_argument("--tenant", required=True, help="whose key it is, as named in the configuration")
    new.add_argument("--write", action="store_true", help="write the key's hash into the configuration")
    operator = actions.add_parser("operator", help="create a key for `headgate operate` and print it once")
    operator.add_argument("--name", default="operator", help="name of the operator in the audit log (operator)")
    operator.add_argument(
        "--permissions", type=_permissions, default=("read", "operate"), help="comma-separated (read,operate)"
    )
    operator.add_argument("--write", action="store_true", help="write the key's hash into the configuration")
    hashing = actions.add_parser("hash", help="read a key from stdin and print its hash")
    for each in (new, operator, hashing):
        each.add_argument(
            "--config", type=Path, metavar="FILE", help="configuration (headgate.yaml, where it is there)"
        )
    actions.add_parser("secret", help=f"print a new secret for {VARIABLE}")
    _add_database_actions(actions.add_parser)


def _add_database_actions(add: Callable[..., argparse.ArgumentParser]) -> None:
    """What a running gateway does to the keys in its database."""
    from headgate.cli.input.admin_request import add_place, length_s
    from headgate.cli.input.arguments import key_path, listed, tenant_path
    from headgate.cli.tenants import add_terms

    create = add("create", help="make a key in the database and print it, this once")
    rotate = add("rotate", help="make a new one for it; both work for a while")
    revoke = add("revoke", help="end a key of the database")
    listing = add("list", help="show the keys of the database, not what they are")
    for each in (create, rotate, revoke):
        each.add_argument("key", type=key_path, metavar="PATH", help="ORGANISATION/PROJECT/KEY")
    for each in (create, rotate):
        each.add_argument("--expires-in", type=length_s, metavar="TIME", help="such as 90d; never")
    add_terms(create)
    overlap = "how long those before it go on working (1h); such as 0 or 24h"
    rotate.add_argument(
        "--overlap", type=lambda text: 0 if text == "0" else length_s(text), default=3_600, help=overlap
    )
    listing.add_argument("--below", type=tenant_path, metavar="PATH", help="only of this tenant and what is below it")
    listing.add_argument("--after", default="", metavar="PATH", help="go on after this one")
    listing.add_argument("--limit", type=listed, default=100, help="so many at most (100)")
    for each in (create, rotate, revoke, listing):
        add_place(each)


def run(args: argparse.Namespace) -> int:
    match args.action:
        case "create" | "rotate" | "revoke" | "list":
            return _in_database(args)
        case "secret":
            return _secret()
        case "hash":
            return _hash(args.config)
        case "operator":
            return _operator(args.name, args.permissions, args.config, write=args.write)
        case _:
            return _new(args.tenant, args.config, write=args.write)


def _in_database(args: argparse.Namespace) -> int:
    from headgate.cli.input.admin_request import NotDone, ask, failed, show_json, table
    from headgate.cli.tenants import terms_of

    body: dict[str, object]
    match args.action:
        case "create":
            body = {"key": args.key, "expires_in_s": args.expires_in, **terms_of(args)}
        case "rotate":
            body = {"key": args.key, "expires_in_s": args.expires_in, "overlap_s": args.overlap}
        case "revoke":
            body = {"key": args.key}
        case _:
            body = {"below": args.below, "after": args.after, "limit": args.limit}
    try:
        answer = ask(args, f"keys/{args.action}", body)
    except NotDone as problem:
        return failed(problem)
    if args.json:
        show_json(answer)
    elif args.action == "list":
        columns = ("key", "state", "created_at", "expires_at", "revoked_at")
        table(answer["data"], columns, empty="no key in the database; `headgate keys create ORG/PROJECT/KEY` makes one")
        if answer["next"]:
            _tell(f"there are more: --after {answer['next']}")
    elif args.action == "revoke":
        print(_revoked(args.key, answer["revoked"]))
    else:
        _tell(f"a key of {args.key}; it is shown this once and stored nowhere:")
        print(answer["secret"])
    return 0


def _revoked(key: str, count: int) -> str:
    if not count:
        return f"{key}: nothing was revoked, since no key of it was working"
    cut_off = "one that the database does not reach takes it until it hears of it"
    return f"{key}: {count} revoked; gateways refuse it as soon as they hear of it, which is within moments; {cut_off}"


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
        return _problem("no key came in; write one key to stdin")
    print(format_digest(digest(secret.value, key.strip())))
    return 0


def _new(tenant: str, config: Path | None, *, write: bool) -> int:
    import secrets

    from headgate.config.edit import add_item
    from headgate.config.references import is_path
    from headgate.wire.keys import digest, format_digest

    if not is_path(tenant):
        problem = "cannot name a tenant; use up to 64 letters, digits, and . _ -, or several such with / between them"
        return _problem(f'"{tenant}" {problem}')
    secret = _key_secret(config)
    if secret is None:
        return 1
    key = "hg-" + secrets.token_urlsafe(32)
    known = format_digest(digest(secret.value, key))
    file = config or Path("headgate.yaml")
    if write:
        if not _write(file, secret, lambda text: add_item(text, ("tenants", tenant, "keys"), known)):
            return 1
        _tell(f'the hash of a new key of tenant "{tenant}" is in {file}; {_taken_up(secret)}')
    else:
        snippet = ["tenants:", f"  {tenant}:", "    keys:", f'      - "{known}"']
        _tell(f"put this into {file}, then use the key (--write does it for you):\n{_snippet(snippet, secret)}")
    print(key)
    return 0


def _operator(name: str, permissions: Sequence[str], config: Path | None, *, write: bool) -> int:
    """Creates a key for `headgate operate`, with or without a database."""
    import secrets

    from headgate.config.edit import add_item, add_value, has
    from headgate.config.references import is_name
    from headgate.wire.keys import digest, format_digest

    if not is_name(name):
        return _problem(f'"{name}" is not a valid operator name; use up to 64 letters, digits, and . _ -')
    secret = _key_secret(config)
    if secret is None:
        return 1
    key = "hg-" + secrets.token_urlsafe(32)
    known = format_digest(digest(secret.value, key))
    file, place = config or Path("headgate.yaml"), ("admin_keys", name)

    def edited(text: str) -> str:
        if has(text, place):
            raise _Taken(f'{file} already has an operator "{name}"; choose another --name, or remove admin_keys.{name}')
        text = add_value(text, (*place, "key"), known)
        for permission in permissions:
            text = add_item(text, (*place, "permissions"), permission)
        return text

    if write:
        if not _write(file, secret, edited):
            return 1
        _tell(f'the hash of a new key of operator "{name}" is in {file}; {_taken_up(secret)}')
        _tell("export the key as HEADGATE_ADMIN_KEY; `headgate operate list` shows whether it works")
    else:
        listed = ", ".join(permissions)
        snippet = ["admin_keys:", f"  {name}:", f'    key: "{known}"', f"    permissions: [{listed}]"]
        _tell(f"put this into {file}, then use the key (--write does it for you):\n{_snippet(snippet, secret)}")
    print(key)
    return 0


def _taken_up(secret: _Secret) -> str:
    if secret.in_file:
        return "a running gateway takes it up on SIGHUP"
    return f"the setting key_secret was added too: restart the gateway with {VARIABLE} in its environment"


def _permissions(text: str) -> tuple[str, ...]:
    from headgate.config.database import PERMISSIONS

    named = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not named or not set(named) <= set(PERMISSIONS):
        raise argparse.ArgumentTypeError(f"use a comma-separated list of {', '.join(PERMISSIONS)}")
    return named


def _key_secret(config: Path | None) -> _Secret | None:
    """The secret that the configuration names, else that of the environment. Where there is none, says what to do."""
    from headgate.config.load import key_secret
    from headgate.config.problems import ConfigErrors

    file = config or Path("headgate.yaml")
    if config is not None or file.exists():
        try:
            named = key_secret(file, os.environ)
        except ConfigErrors as errors:
            _tell(str(errors))
            if VARIABLE in str(errors):
                _tell(_NO_SECRET)
            return None
        if named is not None:
            return _Secret(named, in_file=True)
    if not os.environ.get(VARIABLE):
        _tell(_NO_SECRET)
        return None
    return _Secret(os.environ[VARIABLE].encode(), in_file=False)


def _write(file: Path, secret: _Secret, edited: Callable[[str], str]) -> bool:
    """Writes the text that `edited` returns, and the secret if new. Prints the reason and returns False on failure."""
    from headgate.config.edit import Unedited, add_value
    from headgate.config.load import read_text
    from headgate.config.problems import ConfigErrors

    try:
        text = read_text(file)
        if not secret.in_file:
            text = add_value(text, ("key_secret",), f"${{{VARIABLE}}}")
        _replace(file, edited(text))
    except _Taken as taken:
        _problem(str(taken))
    except ConfigErrors as errors:
        _tell(str(errors))
    except Unedited:
        _problem(f"{file} has a layout that only a person should change, so it stays as it is; try without --write")
    except OSError as error:
        _problem(f"{file} cannot be written: {error.strerror}")
    else:
        return True
    return False


def _replace(file: Path, text: str) -> None:
    """All or nothing: whoever reads the file meanwhile sees the old one or the new one."""
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
    return "\n".join(lines if secret.in_file else [f'key_secret: "${{{VARIABLE}}}"', *lines])


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def _problem(text: str) -> int:
    _tell(f"headgate: {text}")
    return 1
