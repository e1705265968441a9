"""Tests for the complete product: the command line, the HTTP API and real engines."""

import pytest

pytest.register_assert_rewrite("tests.acceptance.scenarios")
