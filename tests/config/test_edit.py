"""Inserting values into a configuration file."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headgate.config.edit import EditNotPossible, add_item, add_value

KEYS = ("tenants", "demo", "keys")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'tenants:\n  demo:\n    keys:\n      - "k"\n'),
        ("# mine\npools: {}", '# mine\npools: {}\ntenants:\n  demo:\n    keys:\n      - "k"\n'),
        ("tenants:\n", 'tenants:\n  demo:\n    keys:\n      - "k"\n'),
        ("tenants: {}  # none\n", 'tenants: {demo: {keys: ["k"]}}  # none\n'),
        ("tenants: {a: {}}\n", 'tenants: {a: {}, demo: {keys: ["k"]}}\n'),
        ("tenants:\n  demo:\na: b\n", 'tenants:\n  demo:\n    keys:\n      - "k"\na: b\n'),
        ("tenants:\n  demo: {}\na: b\n", 'tenants:\n  demo: {keys: ["k"]}\na: b\n'),
        ("tenants:\n  demo: {keys: []}\n", 'tenants:\n  demo: {keys: ["k"]}\n'),
        ("tenants:\n  demo: {keys: [a]}\n", 'tenants:\n  demo: {keys: [a, "k"]}\n'),
        (
            "tenants:\n  demo:\n    keys:\n    - a # of Ann\n\n\n# end\n",
            'tenants:\n  demo:\n    keys:\n    - a # of Ann\n    - "k"\n\n\n# end\n',
        ),
        (
            "tenants:\n  demo:\n    models: [m] # of it\n\nb: c\n",
            'tenants:\n  demo:\n    models: [m] # of it\n    keys:\n      - "k"\n\nb: c\n',
        ),
        (
            "tenants:\n    other:\n        keys: [\n          a\n        ]\n# end\n",
            (
                "tenants:\n    other:\n        keys: [\n          a\n        ]\n"
                '    demo:\n      keys:\n        - "k"\n# end\n'
            ),
        ),
        ('{"tenants": {"demo": {"keys": ["a"]}}}', '{"tenants": {"demo": {"keys": ["a", "k"]}}}\n'),
    ],
)
def test_item_is_added_to_existing_text(before: str, after: str) -> None:
    assert add_item(before, KEYS, "k") == after


def test_value_is_added_at_the_end() -> None:
    assert add_value("pools: {}\n", ("key_secret",), "${S}") == 'pools: {}\nkey_secret: "${S}"\n'


def test_windows_line_endings_are_preserved() -> None:
    assert add_item("a: b\r\n", KEYS, "k").startswith("a: b\r\n")


@pytest.mark.parametrize(
    "text",
    [
        "tenants: {demo: }\n",
        "tenants:\n  demo: ~\n",
        "tenants:\n  demo: {keys: a}\n",
        "tenants:\n  demo: {keys: [a, ]}\n",
        "tenants: [demo]\n",
        "tenants:\n  other: &a {keys: [b]}\n  demo: *a\n",
        "tenants:\n  demo:\n    keys: {}\n",
        "- a\n",
        "a: [\n",
        "text: |\n  a\n  b\n...\n",
    ],
)
def test_file_with_unsupported_layout_is_not_edited(text: str) -> None:
    with pytest.raises(EditNotPossible):
        add_item(text, KEYS, "k")


NAMES = st.sampled_from(["keys", "demo", "a"])
TREES = st.recursive(
    st.none() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["tenants", "pools"]), TREES), st.booleans(), st.booleans())
def test_edit_adds_only_the_new_value(tree: dict, flow: bool, wide: bool) -> None:
    text = yaml.safe_dump(tree, default_flow_style=flow, indent=4 if wide else 2)
    try:
        edited = yaml.safe_load(add_item(text, KEYS, "k"))
    except EditNotPossible:
        return

    keys = edited["tenants"]["demo"]["keys"]
    assert keys.pop() == "k"
    assert {name: value for name, value in edited.items() if name != "tenants"} == {
        name: value for name, value in tree.items() if name != "tenants"
    }
