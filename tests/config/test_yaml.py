"""Unusual and invalid YAML."""

import pytest
import yaml

from headgate.config.problems import ConfigReport
from headgate.config.yaml_document import parse, parse_all
from tests.config.builders import problems_of, small_with


def test_invalid_yaml_is_reported_as_one_problem_with_its_line() -> None:
    assert problems_of("pools: {small: [}\n") == [
        "1: is not YAML: while parsing a flow node, did not find expected node content"
    ]


def test_tab_indentation_is_reported() -> None:
    [said] = problems_of("pools:\n\tsmall: {}\n")

    assert said.startswith("2: is not YAML: ")
    assert said.endswith("; indent with spaces, not tabs")


def test_forbidden_character_is_reported_as_one_problem() -> None:
    [said] = problems_of("pools: \x00\n")

    assert "is not YAML: " in said


def test_two_documents_in_one_file_are_rejected() -> None:
    [said] = problems_of(small_with("---", "a: b"))

    assert said.startswith("8: is not YAML: expected a single document in the stream")


def test_top_level_list_is_rejected() -> None:
    [said] = problems_of("- pools\n")

    assert said.startswith("1: expected a mapping with the settings pools, models, listen,")


def test_recursive_alias_is_rejected() -> None:
    assert problems_of(small_with("limits: &limits", "  body_bytes_max: *limits")) == [
        "9: limits.body_bytes_max: is an alias of an enclosing value; remove the alias"
    ]


def test_recursive_merge_is_rejected() -> None:
    assert problems_of(small_with("limits: &limits", "  <<: *limits")) == [
        "8: limits.<<: must be an alias of a mapping that does not enclose it"
    ]


def test_merging_a_non_mapping_is_rejected() -> None:
    assert problems_of(small_with("limits: {<<: 3}")) == [
        "8: limits.<<: must be an alias of a mapping that does not enclose it"
    ]


def test_exponential_aliases_are_rejected() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]

    assert problems_of(small_with(*lines)) == [
        "1: has more than 500000 values after aliases are expanded; use fewer aliases"
    ]


def test_unknown_yaml_tag_is_rejected() -> None:
    assert problems_of(small_with("key_secret: !vault abc")) == [
        '8: key_secret: has the YAML tag "!vault", which is not supported; remove it'
    ]


def test_pure_python_loader_returns_the_same_tree_and_lines() -> None:
    text = small_with("drain_grace: 5s")
    quick, slow = ConfigReport("headgate.yaml"), ConfigReport("headgate.yaml")

    assert parse(text, slow, loader=yaml.SafeLoader) == parse(text, quick)
    assert slow.lines == quick.lines
    assert slow.lines["drain_grace",] == 8


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: " + "[" * 200_000 + "]" * 200_000, id="flow"),
        pytest.param("- " * 5_000 + "x", id="block"),
        pytest.param("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2_000)), id="aliases"),
        pytest.param(
            "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}}}\n" for n in range(1, 2_000)), id="merges"
        ),
    ],
)
def test_deep_nesting_is_rejected(text: str) -> None:
    assert "has more than 100 nested levels after aliases are expanded; use fewer levels" in problems_of(text)[0]


def test_a_file_with_several_documents_has_one_tree_and_its_lines_for_each() -> None:
    report = ConfigReport("x")

    assert parse_all("a: 1\n---\n- b\n---\n", report) == [{"a": "1"}, ["b"], None]
    assert (report.lines[(0, "a")], report.lines[(1, 0)]) == (1, 3)


def test_several_documents_have_the_limits_of_a_single_one() -> None:
    for text in ("a: [\n", "---\n" + "[" * 200_000):
        report = ConfigReport("x")

        assert parse_all(text, report) == []
        assert report.has_problem(())
