"""Does docs/guides/load-testing.md name every option, and none that does not exist?"""

import argparse
import re
from pathlib import Path

from headgate.cli.loadtest import add_arguments

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "load-testing.md").read_text()


def test_the_page_names_the_options_there_are() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings if option.startswith("--")}

    assert set(re.findall(r"--[a-z][a-z0-9-]+", PAGE)) == options - {"--help"}
