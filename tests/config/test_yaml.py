"""What happens where the YAML itself is odd?"""

import yaml

from headgate.config.document import parse
from headgate.config.problems import Report
from tests.config.builders import problems_of, small_with


def test_broken_yaml_is_one_problem_on_its_line() -> None:
    assert problems_of("pools: {small: [}\n") == [
        "1: is not YAML: while parsing a flow node, did not find expected node content"
    ]


def test_a_tab_is_pointed_out() -> None:
    [said] = problems_of("pools:\n\tsmall: {}\n")

    assert said.startswith("2: is not YAML: ")
    assert said.endswith("; indent with spaces, not tabs")


def test_a_character_that_yaml_forbids_is_one_problem() -> None:
    [said] = problems_of("pools: \x00\n")

    assert "is not YAML: " in said


def test_two_documents_are_not_one_file() -> None:
    [said] = problems_of(small_with("---", "a: b"))

    assert said.startswith("8: is not YAML: expected a single document in the stream")


def test_a_file_that_is_a_list_is_told_what_it_should_be() -> None:
    [said] = problems_of("- pools\n")

    assert said.startswith("1: expected a mapping with the settings pools, models, listen,")


def test_an_alias_that_never_ends_is_refused() -> None:
    assert problems_of(small_with("limits: &limits", "  body_bytes_max: *limits")) == [
        "9: limits.body_bytes_max: is an alias of something that it stands in itself; write it out"
    ]


def test_a_mapping_cannot_be_merged_into_itself() -> None:
    assert problems_of(small_with("limits: &limits", "  <<: *limits")) == [
        "8: limits.<<: must name a mapping that it does not stand in itself"
    ]


def test_only_mappings_can_be_merged() -> None:
    assert problems_of(small_with("limits: {<<: 3}")) == [
        "8: limits.<<: must name a mapping that it does not stand in itself"
    ]


def test_aliases_that_grow_without_bound_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]

    assert problems_of(small_with(*lines)) == [
        "1: holds more than 500000 values once its aliases are followed; use fewer of them"
    ]


def test_a_tag_of_another_program_is_refused() -> None:
    assert problems_of(small_with("key_secret: !vault abc")) == [
        '8: key_secret: has the YAML tag "!vault", which means nothing here; remove it'
    ]


def test_the_slow_loader_reads_the_same_tree_and_lines() -> None:
    text = small_with("drain_grace: 5s")
    quick, slow = Report("headgate.yaml"), Report("headgate.yaml")

    assert parse(text, slow, loader=yaml.SafeLoader) == parse(text, quick)
    assert slow.lines == quick.lines
    assert slow.lines["drain_grace",] == 8
