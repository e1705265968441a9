"""Tests that tenants never share a cached prefix."""

from hypothesis import given
from hypothesis import strategies as st

from headgate.wire.cache_salts import engine_salt, tenant_salt


def test_tenant_salt_depends_only_on_secret_and_tenant() -> None:
    assert tenant_salt(b"secret", "acme") == tenant_salt(b"secret", "acme")
    assert len({tenant_salt(secret, name) for secret in (b"a", b"b") for name in ("acme", "other", "")}) == 6


_PAIRS = st.tuples(st.text(min_size=1), st.none() | st.text(min_size=1))


@given(one=_PAIRS, other=_PAIRS)
def test_engine_salts_are_equal_only_for_equal_tenant_and_client_salt(
    one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    def told(pair: tuple[str, str | None]) -> str:
        return engine_salt(tenant_salt(b"secret", pair[0]), pair[1])

    assert (told(one) == told(other)) == (one == other)
