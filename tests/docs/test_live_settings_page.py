"""The guide to trials lists the settings that can be tried, with their bounds."""

import re

from headgate.config.live_values import bounds_text
from headgate.model.live_settings import LIVE_SETTINGS
from tests.house.small_tree import PROJECT


def test_page_lists_every_live_setting() -> None:
    page = (PROJECT / "docs/guides/tune-live.md").read_text()
    listed = dict(re.findall(r"^\| `([a-zNAME._]+)` \| (.+) \|$", page, re.MULTILINE))

    assert {each.pattern: bounds_text(each) for each in LIVE_SETTINGS}.items() <= listed.items()
