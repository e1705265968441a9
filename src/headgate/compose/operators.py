"""Operator authentication: keys, tokens and the browser login."""

from typing import TYPE_CHECKING

from headgate.config.settings import Settings
from headgate.edge.admin.login import ConsoleLogin
from headgate.edge.admin.operator_auth import OperatorAuth
from headgate.edge.admin.sessions import SessionSigner
from headgate.ports.admin_roles import Operator, granted

if TYPE_CHECKING:
    from headgate.compose.identity import Identity


def console_login(settings: Settings, identity: "Identity | None") -> ConsoleLogin | None:
    """Returns the browser login. None if not configured."""
    login = None if identity is None else identity.login
    return None if login is None else ConsoleLogin(login, SessionSigner(settings.key_secrets))


def operator_auth(settings: Settings, identity: "Identity | None", login: ConsoleLogin | None) -> OperatorAuth:
    """Returns operator authentication by keys, tokens and the sessions of `login`."""
    operators = {each.digest: Operator(each.name, granted(each.permissions)) for each in settings.admin_keys}
    tokens = None if identity is None else identity.operators
    return OperatorAuth(settings.key_secrets or (b"",), operators, tokens, login)
