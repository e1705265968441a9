"""Tests for scripts/check_structure.py."""

import pytest

from tests.house.small_tree import SmallTree


def test_small_tree_passes_the_checks(tree: SmallTree) -> None:
    verdict = tree.shape()

    assert verdict.passed, verdict.said


def test_file_without_a_docstring_is_rejected(tree: SmallTree) -> None:
    (tree.root / "src/headgate/edge/mute.py").write_text("X = 1\n")

    assert_refused(tree, "src/headgate/edge/mute.py:1: open the file with a docstring")


def test_docstring_may_be_a_statement(tree: SmallTree) -> None:
    (tree.root / "src/headgate/edge/plain.py").write_text('"""Accept connections."""\n')

    assert tree.shape().passed


@pytest.mark.parametrize(("lines", "passes"), [(500, True), (501, False)])
def test_file_has_at_most_500_lines(tree: SmallTree, lines: int, passes: bool) -> None:
    (tree.root / "src/headgate/edge/long.py").write_text('"""Long."""\n' + "X = 1\n" * (lines - 1))

    verdict = tree.shape()

    assert verdict.passed is passes
    assert (f"the file has {lines} lines" in verdict.said) is not passes


@pytest.mark.parametrize(("lines", "passes"), [(300, True), (301, False)])
def test_class_has_at_most_300_lines(tree: SmallTree, lines: int, passes: bool) -> None:
    tree.write("src/headgate/edge/long.py", "class Long:", *["    pass"] * (lines - 1))

    verdict = tree.shape()

    assert verdict.passed is passes
    assert (f"Long has {lines} lines" in verdict.said) is not passes


@pytest.mark.parametrize(("methods", "passes"), [(30, True), (31, False)])
def test_class_has_at_most_30_methods(tree: SmallTree, methods: int, passes: bool) -> None:
    tree.write("src/headgate/edge/wide.py", "class Wide:", *[f"    def m{n}(self): ..." for n in range(methods)])

    verdict = tree.shape()

    assert verdict.passed is passes
    assert (f"Wide has {methods} methods" in verdict.said) is not passes


def test_public_class_names_are_unique(tree: SmallTree) -> None:
    tree.write("src/headgate/edge/one.py", "class Twice: ...", "class _Private: ...")
    tree.write("src/headgate/wire/other.py", "class Twice: ...", "class _Private: ...")

    assert_refused(tree, "src/headgate/wire/other.py:3: src/headgate/edge/one.py:3 defines a class Twice too")
    assert "_Private" not in tree.shape().said


@pytest.mark.parametrize(
    ("module", "passes"),
    [("headgate.edge.options", True), ("headgate.model.units", True), ("headgate.edge.app", False)],
)
def test_config_imports_only_options_from_other_packages(tree: SmallTree, module: str, passes: bool) -> None:
    tree.write("src/headgate/config/reader.py", f"from {module} import Thing")

    verdict = tree.shape()

    assert verdict.passed is passes
    assert ("may import only options of a part" in verdict.said) is not passes


def test_init_file_may_be_empty(tree: SmallTree) -> None:
    (tree.root / "src/headgate/edge/__init__.py").write_text("")

    assert tree.shape().passed


@pytest.mark.parametrize(("lines", "passes"), [(70, True), (71, False)])
@pytest.mark.parametrize("define", ["def", "async def"])
def test_function_has_at_most_70_lines(tree: SmallTree, define: str, lines: int, passes: bool) -> None:
    tree.write("src/headgate/edge/long.py", f"{define} long():", *["    pass"] * (lines - 1))

    verdict = tree.shape()

    assert verdict.passed is passes
    assert (f"long has {lines} lines" in verdict.said) is not passes


@pytest.mark.parametrize("name", ["utils", "helpers", "common", "manager"])
def test_file_with_a_generic_name_is_rejected(tree: SmallTree, name: str) -> None:
    tree.write(f"src/headgate/edge/{name}.py")

    assert_refused(tree, f"name the file for its noun, not '{name}.py'")


@pytest.mark.parametrize("room", ["core", "core/queues", "model"])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import platform", "may not import platform"),
        ("import msgspec", "may not import msgspec"),
        ("from redis.asyncio import Redis", "may not import redis.asyncio"),
        ("from math import exp", "may not use math.exp"),
        ("X = math.floor(1.5)", "may not use math.floor"),
        ("X = hash('a')", "hash() differs between runs"),
        ("X = sorted([], key=id)", "id() differs between runs"),
        ("X = open('a')", "open() is I/O"),
    ],
)
def test_pure_package_rejects_forbidden_imports_and_calls(tree: SmallTree, room: str, line: str, reason: str) -> None:
    tree.write(f"src/headgate/{room}/violation.py", line)

    assert_refused(tree, f"src/headgate/{room}/violation.py:3:")
    assert_refused(tree, reason)


def test_field_named_after_a_builtin_is_allowed(tree: SmallTree) -> None:
    tree.write("src/headgate/model/thing.py", "class Thing:", "    id: int", "    hash: int")

    verdict = tree.shape()

    assert verdict.passed, verdict.said


# The tildes are removed below. Without them, this file would contain the forbidden addresses itself.
@pytest.mark.parametrize(
    "address",
    [
        "/wo~rk/somewhere",
        "/ro~ot/.cache",
        "files.python~hosted.org",
        "pypi~.org/simple",
        "registry.npm~js.org",
        "deb.deb~ian.org",
        "file:~///mirror",
    ],
)
@pytest.mark.parametrize("name", ["docs/guide.md", "requirements/base.txt", "src/headgate/edge/app.py"])
def test_machine_specific_path_or_registry_address_is_rejected(tree: SmallTree, name: str, address: str) -> None:
    tree.write(name, "# see " + address.replace("~", ""))

    assert_refused(tree, f"{name}:3: names a path of one machine")


@pytest.mark.process
def test_script_checks_tracked_files_but_not_ignored_ones(tree: SmallTree) -> None:
    (tree.root / ".gitignore").write_text("notes.md\n")
    tree.write("notes.md", "/wo~rk/somewhere".replace("~", ""))

    assert tree.tracked_shape().passed
    tree.write("notes.txt", "/wo~rk/somewhere".replace("~", ""))
    verdict = tree.tracked_shape()
    assert not verdict.passed
    assert "notes.txt:3: names a path of one machine" in verdict.said


def assert_refused(tree: SmallTree, complaint: str) -> None:
    verdict = tree.shape()
    assert not verdict.passed
    assert complaint in verdict.said
