"""Can two tenants ever share a cached prefix?"""

from hypothesis import given
from hypothesis import strategies as st

from headgate.wire.salts import engine_salt, tenant_salt


def test_a_tenants_salt_is_the_same_wherever_the_secret_is() -> None:
    assert tenant_salt(b"secret", "acme") == tenant_salt(b"secret", "acme")
    assert len({tenant_salt(secret, name) for secret in (b"a", b"b") for name in ("acme", "other", "")}) == 6


_PAIRS = st.tuples(st.text(min_size=1), st.none() | st.text(min_size=1))


@given(one=_PAIRS, other=_PAIRS)
def test_salts_are_alike_only_where_tenant_and_caller_are(
    one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    def told(pair: tuple[str, str | None]) -> str:
        return engine_salt(tenant_salt(b"secret", pair[0]), pair[1])

    assert (told(one) == told(other)) == (one == other)
