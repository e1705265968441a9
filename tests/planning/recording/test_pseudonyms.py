"""Names of tenants and stages in a trace."""

from headgate.planning.recording.pseudonyms import StageNumbers, TenantPseudonyms


def test_each_level_of_a_tenant_is_hashed() -> None:
    names = TenantPseudonyms()
    first, second, other = names.name("acme/search/web"), names.name("acme/chat"), names.name("globex/search")

    assert [len(each.split("/")) for each in (first, second, other)] == [3, 2, 2]
    assert first.split("/")[0] == second.split("/")[0] != other.split("/")[0]
    # Projects of the same name in different organizations are different tenants.
    assert first.split("/")[1] != other.split("/")[1]
    assert not {"acme", "search", "web", "chat", "globex"} & set(f"{first}/{second}/{other}".split("/"))
    assert names.name("") == ""


def test_every_trace_has_its_own_secret() -> None:
    assert TenantPseudonyms().name("acme") != TenantPseudonyms().name("acme")
    assert TenantPseudonyms(secret=b"x").name("acme") == TenantPseudonyms(secret=b"x").name("acme")


def test_name_that_is_not_a_path_is_hashed_as_a_whole() -> None:
    names = TenantPseudonyms()
    assert all("/" not in names.name(each) for each in ("a/b/c/d", "/", "https://x.example/y", "\ud800"))


def test_kept_names_are_printable() -> None:
    assert TenantPseudonyms(keep_names=True).name("acme\x1b[31m") == "acme\\x1b[31m"


def test_stages_are_numbered() -> None:
    stages = StageNumbers()
    assert [stages.name(each) for each in ("retrieval", "prompt", "retrieval")] == ["s1", "s2", "s1"]
    for number in range(2_000):
        last = stages.name(f"stage {number}")
    assert last == "s0"
