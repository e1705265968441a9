"""Token issuers in the configuration."""

import pytest

from headgate.config.difference import setting_changes
from headgate.config.effective import effective_settings
from headgate.config.extras import missing_extras
from headgate.config.summary import summary_data, summary_lines
from headgate.identity.options import IssuerOptions, LoginOptions, OperatorTokenOptions
from headgate.ports.admin_roles import Role
from headgate.ports.tls import ClientTlsOptions
from tests.config.builders import problems_of, settings_of, small_with, warnings_of

USUAL = "issuer: https://login.example.com, audience: headgate, tenant: demo"


def issuers_of(*issuers: str) -> str:
    return small_with("identity:", "  issuers:", *(f"    {each}" for each in issuers))


def one(text: str = "") -> str:
    """A file with one valid issuer, in which `text` replaces or adds settings."""
    usual = dict(each.split(": ", 1) for each in USUAL.split(", "))
    changed = dict(each.split(": ", 1) for each in text.split("; ")) if text else {}
    return issuers_of("corp: {" + ", ".join(f"{name}: {value}" for name, value in (usual | changed).items()) + "}")


def test_there_are_no_issuers_by_default() -> None:
    assert settings_of(small_with()).issuers == ()


def test_issuer_has_defaults() -> None:
    assert settings_of(one()).issuers == (IssuerOptions("corp", "https://login.example.com", ("headgate",), "demo"),)


def test_all_settings_are_read() -> None:
    text = (
        "algorithms: [EdDSA]; required_claims: {groups: [a, b], scope: infer}; clock_skew: 5s; refresh_interval: 1m; "
        "key_retention: 1h; jwks_url: https://cdn.example.com/keys; tls: {ca: ca.pem}"
    )

    assert settings_of(one(text)).issuers == (
        IssuerOptions(
            "corp",
            "https://login.example.com",
            ("headgate",),
            "demo",
            jwks_url="https://cdn.example.com/keys",
            algorithms=("EdDSA",),
            required_claims=(("groups", ("a", "b")), ("scope", ("infer",))),
            clock_skew_ns=5 * 10**9,
            refresh_interval_ns=60 * 10**9,
            key_retention_ns=3_600 * 10**9,
            tls=ClientTlsOptions("ca.pem"),
        ),
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("issuer: http://login.example.com", "issuer: is not an https URL; http is allowed only for 127.0.0.1"),
        ("issuer: login.example.com", "is not an https URL"),
        ("issuer: https://user:pass@login.example.com", "is not an https URL"),
        ("issuer: 'https://login.example.com/#x'", "is not an https URL"),
        ("jwks_url: ftp://login.example.com/keys", "jwks_url: is not an https URL"),
        ("jwks_url: http://10.0.0.1/keys", "jwks_url: is not an https URL"),
        ("audience: []", "audience: missing or empty; list the values of the claim aud"),
        ("audience: ['']", "audience[0]: expected a non-empty string"),
        ("algorithms: [HS256]", "HS256 does not prove who signed a token; only asymmetric algorithms are supported"),
        ("algorithms: [none]", "none does not prove who signed a token"),
        ("algorithms: [RS265]", 'algorithm "RS265" does not exist; did you mean "RS256"?'),
        ("algorithms: []", "algorithms: is empty; available: RS256"),
        ("tenant: dmo", 'tenant "dmo" does not exist; did you mean "demo"?'),
        ("tenant: 'acme/{team'", "is not a tenant path, such as acme, acme/{team} or {tenant}"),
        ("tenant: 'acme/ {team}'", "is not a tenant path"),
        ("tenant: '/{team}'", "is not a tenant path"),
        ("required_claims: {groups: []}", "required_claims.groups: is empty; list the accepted values"),
        ("clock_skew: 6m", "clock_skew: is more than 5m; synchronize the clocks"),
        ("tls: {key: k.pem}", "tls.certificate: missing; set the PEM file"),
    ],
)
def test_problems(changed: str, said: str) -> None:
    [problem] = problems_of(one(changed))

    assert said in problem


def test_missing_settings_are_reported() -> None:
    problem = problems_of(issuers_of("corp: {}"))[0]
    [audience, tenant] = problems_of(issuers_of("corp: {issuer: 'https://login.example.com'}"))

    assert "issuer: missing; " in problem
    assert "audience: missing or empty; " in audience
    assert "tenant: missing; " in tenant


def test_empty_section_is_reported() -> None:
    assert "define at least one issuer" in problems_of(small_with("identity: {issuers: {}}"))[0]


def test_each_issuer_is_defined_once() -> None:
    [problem] = problems_of(issuers_of(f"corp: {{{USUAL}}}", f"copy: {{{USUAL}}}"))

    assert 'copy.issuer: is also the issuer of "corp"; define each issuer once' in problem


def test_number_of_issuers_is_limited() -> None:
    many = (f"i{each}: {{{USUAL.replace('login', f'l{each}')}}}" for each in range(17))

    assert any("has more than 16 issuers" in each for each in problems_of(issuers_of(*many)))


def test_loopback_issuer_may_use_http() -> None:
    assert problems_of(one("issuer: 'http://127.0.0.1:9000'")) == []


def test_tenant_from_a_claim_need_not_be_in_the_file() -> None:
    assert problems_of(one("tenant: 'acme/{team}'")) == []


def test_tenants_without_keys_are_not_reported() -> None:
    text = one().replace("anonymous_tenant: demo\n", "")

    assert warnings_of(text) == []


def test_issuers_need_the_library() -> None:
    [missing] = missing_extras(settings_of(one()), installed=lambda name: name != "joserfc")

    assert (missing.place, missing.fix) == ("identity", "pip install 'headgate[oidc]'")
    assert "joserfc is not installed" in missing.message


def test_summary_and_difference_show_issuers() -> None:
    before, after = settings_of(one()), settings_of(one("clock_skew: 1s"))

    changes = setting_changes(effective_settings(before), effective_settings(after))

    assert "tokens from https://login.example.com are accepted for tenant demo" in list(summary_lines(before))
    assert [each.setting for each in changes] == ["identity.issuers.corp.clock_skew"]
    assert before.hash != after.hash


# Operators

ROLES = "{admin: [platform], viewer: [staff, interns]}"


def with_operators(text: str = "", *, issuer: str = f"{{{USUAL}}}") -> str:
    """A file in which operators use tokens of the issuer `corp`. `text` replaces or adds settings."""
    usual = {"issuer": "corp", "audience": "admin", "roles": ROLES}
    changed = dict(each.split(": ", 1) for each in text.split("; ")) if text else {}
    lines = (f"    {name}: {value}" for name, value in (usual | changed).items() if value)
    return small_with("identity:", "  issuers:", f"    corp: {issuer}", "  operators:", *lines)


def test_operators_have_roles_by_the_values_of_a_claim() -> None:
    assert settings_of(with_operators()).operators == OperatorTokenOptions(
        "corp", ("admin",), ((Role.ADMIN, ("platform",)), (Role.VIEWER, ("staff", "interns")))
    )
    changed = settings_of(with_operators("role_claim: roles; name_claim: email")).operators
    assert changed is not None
    assert (changed.role_claim, changed.name_claim) == ("roles", "email")


def test_issuer_of_operators_needs_no_tenant() -> None:
    settings = settings_of(with_operators(issuer="{issuer: 'https://login.example.com'}"))

    assert settings.issuers == (IssuerOptions("corp", "https://login.example.com"),)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("issuer: crop", 'operators.issuer: issuer "crop" does not exist; did you mean "corp"?'),
        ("audience: []", "operators.audience: is empty; list the values of the claim aud that identify"),
        ("audience: headgate", '"headgate" is also an audience for callers; use another one for operators'),
        ("roles: {}", "operators.roles: is empty; available: viewer, operator, accountant, admin"),
        ("roles: {admn: [a]}", 'role "admn" does not exist; did you mean "admin"?'),
        ("roles: {admin: []}", "operators.roles.admin: is empty; list values of the claim groups"),
        ("issuer: ", "operators.issuer: missing; set the name of one of identity.issuers"),
    ],
)
def test_problems_of_operators(changed: str, said: str) -> None:
    assert any(said in each for each in problems_of(with_operators(changed)))


def test_audience_without_a_tenant_is_reported() -> None:
    [problem] = problems_of(with_operators(issuer="{issuer: 'https://login.example.com', audience: a}"))

    assert "corp.audience: has no effect without tenant" in problem


def test_summary_shows_the_roles_of_operators_and_the_hash_covers_them() -> None:
    settings, other = settings_of(with_operators()), settings_of(with_operators("name_claim: email"))

    said = "operators with a token from corp; roles by the claim groups: admin (platform), viewer (staff or interns)"
    assert said in list(summary_lines(settings))
    assert settings.hash != other.hash


# Login

REDIRECT = "https://headgate.example.com/login/callback"

KEY_SECRET = "key_secret: a secret of more than sixteen letters\n"


def with_login(text: str = "") -> str:
    usual = {"client_id": "console", "redirect_url": REDIRECT}
    changed = dict(each.split(": ", 1) for each in text.split("; ")) if text else {}
    given = ", ".join(f"{name}: {value}" for name, value in (usual | changed).items())
    return KEY_SECRET + with_operators(f"login: {{{given}}}")


def test_login_has_defaults_and_all_settings_are_read() -> None:
    operators = settings_of(with_login()).operators
    assert operators is not None
    assert operators.login == LoginOptions("console", REDIRECT)
    changed = settings_of(with_login("client_secret: s3cret; scopes: [openid, groups]; session_lifetime: 1h")).operators
    assert changed is not None
    assert changed.login == LoginOptions("console", REDIRECT, "s3cret", ("openid", "groups"), 3_600 * 10**9)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("redirect_url: http://headgate.example.com/login/callback", "redirect_url: is not an https URL"),
        ("redirect_url: https://headgate.example.com/", "redirect_url: must end with the path /login/callback"),
        ("redirect_url: 'https://h.example.com/x/login/callback'", "redirect_url: must end with the path"),
        ("redirect_url: 'https://h.example.com/login/callback?a=1'", "redirect_url: must end with the path"),
        ("scopes: [profile]", "scopes: must contain openid"),
        ("session_lifetime: 25h", "session_lifetime: is more than 24h"),
    ],
)
def test_problems_of_the_login(changed: str, said: str) -> None:
    [problem] = problems_of(with_login(changed))

    assert said in problem


def test_login_needs_a_key_secret() -> None:
    text = with_login().removeprefix(KEY_SECRET)

    assert any("login: needs key_secret" in each for each in problems_of(text))


def test_client_secret_is_never_shown_but_changes_the_hash() -> None:
    one, other = (settings_of(with_login(f"client_secret: {each}")) for each in ("s3cret-one", "s3cret-two"))

    shown = (
        f"{one!r} {list(summary_lines(one))} {summary_data(one)} {effective_settings(one)['identity.operators.login']}"
    )
    assert "s3cret" not in shown
    assert one.hash != other.hash
    [change] = setting_changes(effective_settings(one), effective_settings(other))
    assert (change.setting, "s3cret" in f"{change}") == ("identity.operators.login.client_secret", False)
