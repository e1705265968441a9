"""Issuers whose tokens are accepted in addition to API keys and operator keys."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headgate.config.engine_tls import client_tls
from headgate.config.fill import fill, given_settings
from headgate.config.identity_schema import IssuerSection, LoginSection, OperatorTokensSection
from headgate.config.problems import ConfigReport, SettingPath
from headgate.config.references import NAME_RULE, is_name, is_tenant_path
from headgate.config.schema import ConfigFile
from headgate.config.schema_reader import available, suggestion
from headgate.identity.options import (
    ALGORITHMS,
    CLAIM,
    IssuerOptions,
    LoginOptions,
    OperatorTokenOptions,
    is_secure_url,
)
from headgate.model.units import MINUTE, Duration
from headgate.ports.admin_roles import Role

ISSUERS_MAX: Final = 16
_SESSION_MAX: Final = Duration(24 * 60 * MINUTE)
_SKEW_MAX: Final = Duration(5 * MINUTE)
_SYMMETRIC: Final = re.compile(r"(?i)hs\d+|none")


def issuers(file: ConfigFile, report: ConfigReport) -> tuple[IssuerOptions, ...]:
    if file.identity is None:
        return ()
    sections, place = file.identity.issuers, ("identity", "issuers")
    if not sections:
        report.add_problem(place, "is empty; define at least one issuer, or remove identity")
    if len(sections) > ISSUERS_MAX:
        report.add_problem(place, f"has more than {ISSUERS_MAX} issuers; remove some")
    seen: dict[str, str] = {}
    for name, section in sections.items():
        if section.issuer in seen:
            same = f'is also the issuer of "{seen[section.issuer]}"; define each issuer once'
            report.add_problem((*place, name, "issuer"), same)
        seen[section.issuer] = name
    return tuple(_issuer(name, section, file, report) for name, section in sections.items())


def _issuer(name: str, section: IssuerSection, file: ConfigFile, report: ConfigReport) -> IssuerOptions:
    place = ("identity", "issuers", name)
    if not is_name(name):
        report.add_problem(place, NAME_RULE, contents_valid=True)
    for setting, url in (("issuer", section.issuer), ("jwks_url", section.jwks_url)):
        if url is not None and not is_secure_url(url):
            problem = "is not an https URL; http is allowed only for 127.0.0.1, [::1] and localhost"
            report.add_problem((*place, setting), problem)
    if section.clock_skew > _SKEW_MAX:
        report.add_problem((*place, "clock_skew"), "is more than 5m; synchronize the clocks with NTP instead")
    _check_algorithms(section, place, report)
    _check_tenant(section, place, file, report)
    for claim, accepted in section.required_claims.items():
        if not accepted:
            report.add_problem((*place, "required_claims", claim), "is empty; list the accepted values")
    given = given_settings(section) | {
        "name": name,
        "required_claims": tuple((claim, tuple(each)) for claim, each in section.required_claims.items()),
        "tls": client_tls(section.tls, (*place, "tls"), Path(report.file).parent, report),
    }
    return fill(IssuerOptions, given)


def operator_tokens(file: ConfigFile, report: ConfigReport) -> OperatorTokenOptions | None:
    if file.identity is None or file.identity.operators is None:
        return None
    section, place = file.identity.operators, ("identity", "operators")
    issuer = file.identity.issuers.get(section.issuer)
    if issuer is None:
        known = file.identity.issuers
        hint = suggestion(section.issuer, known, otherwise=available(known))
        report.add_problem((*place, "issuer"), f'issuer "{section.issuer}" does not exist{hint}')
    if not section.audience:
        problem = "is empty; list the values of the claim aud that identify the admin listener"
        report.add_problem((*place, "audience"), problem)
    elif issuer is not None and (shared := set(section.audience) & set(issuer.audience)):
        problem = f'"{min(shared)}" is also an audience for callers; use another one for operators'
        report.add_problem((*place, "audience"), problem)
    return OperatorTokenOptions(
        issuer=section.issuer,
        audience=tuple(section.audience),
        roles=_roles(section, place, report),
        role_claim=section.role_claim,
        name_claim=section.name_claim,
        login=_login(section.login, file, (*place, "login"), report),
    )


def _login(
    section: LoginSection | None, file: ConfigFile, place: SettingPath, report: ConfigReport
) -> LoginOptions | None:
    if section is None:
        return None
    if not is_secure_url(section.redirect_url):
        problem = "is not an https URL; http is allowed only for 127.0.0.1, [::1] and localhost"
        report.add_problem((*place, "redirect_url"), problem)
    elif urlsplit(section.redirect_url)[2:] != ("/login/callback", "", ""):
        report.add_problem(
            (*place, "redirect_url"), "must end with the path /login/callback, without a prefix or query"
        )
    if section.scopes is not None and "openid" not in section.scopes:
        report.add_problem((*place, "scopes"), "must contain openid; otherwise, the issuer returns no ID token")
    if section.session_lifetime > _SESSION_MAX:
        report.add_problem(
            (*place, "session_lifetime"), "is more than 24h; sessions cannot be revoked, so use a shorter one"
        )
    if not file.key_secret:
        problem = "needs key_secret, which signs sessions; `headgate keys secret` generates one"
        report.add_problem(place, problem)
    return fill(LoginOptions, given_settings(section))


def _roles(
    section: OperatorTokensSection, place: SettingPath, report: ConfigReport
) -> tuple[tuple[Role, tuple[str, ...]], ...]:
    names = tuple(each.value for each in Role)
    if not section.roles:
        report.add_problem((*place, "roles"), f"is empty{available(names)}")
    found: list[tuple[Role, tuple[str, ...]]] = []
    for name, values in section.roles.items():
        if name not in names:
            hint = suggestion(name, names, otherwise=available(names))
            report.add_problem((*place, "roles", name), f'role "{name}" does not exist{hint}')
        elif not values:
            report.add_problem((*place, "roles", name), f"is empty; list values of the claim {section.role_claim}")
        else:
            found.append((Role(name), tuple(values)))
    return tuple(found)


def _check_algorithms(section: IssuerSection, place: SettingPath, report: ConfigReport) -> None:
    if section.algorithms is not None and not section.algorithms:
        report.add_problem((*place, "algorithms"), f"is empty{available(ALGORITHMS)}")
    for number, each in enumerate(section.algorithms or ()):
        here = (*place, "algorithms", number)
        if _SYMMETRIC.fullmatch(each):
            problem = f"{each} does not prove who signed a token; only asymmetric algorithms are supported"
            report.add_problem(here, f"{problem}{available(ALGORITHMS)}")
        elif each not in ALGORITHMS:
            hint = suggestion(each, ALGORITHMS, otherwise=available(ALGORITHMS))
            report.add_problem(here, f'algorithm "{each}" does not exist{hint}')


def _check_tenant(section: IssuerSection, place: SettingPath, file: ConfigFile, report: ConfigReport) -> None:
    template, here = section.tenant, (*place, "tenant")
    of_operators = None if file.identity is None else file.identity.operators
    if template is None and of_operators is not None and of_operators.issuer == place[-1]:
        if section.audience:
            report.add_problem((*place, "audience"), "has no effect without tenant; set tenant, or remove audience")
        return
    if not section.audience:
        problem = "missing or empty; list the values of the claim aud that identify this gateway"
        report.add_problem((*place, "audience"), problem)
    if template is None:
        report.add_problem(here, "missing; set the tenant of the tokens, such as acme, or acme/{team} for a claim")
    elif not is_tenant_path(CLAIM.sub("claim", template)):
        report.add_problem(here, "is not a tenant path, such as acme, acme/{team} or {tenant}")
    elif CLAIM.search(template) is None and file.database is None and template not in file.tenants:
        hint = suggestion(template, file.tenants, otherwise=f'; add "{template}: {{}}" to tenants')
        report.add_problem(here, f'tenant "{template}" does not exist{hint}')
