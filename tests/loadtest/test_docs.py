"""Test that docs/guides/load-testing.md documents the options of `headgate loadtest`."""

import argparse
import re
from pathlib import Path

from headgate.cli.loadtest import add_arguments

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "load-testing.md").read_text()


def test_page_documents_exactly_the_existing_options() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings if option.startswith("--")}

    assert set(re.findall(r"--[a-z][a-z0-9-]+", PAGE)) == options - {"--help"}
