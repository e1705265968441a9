"""Does the whole product work: the command line in, HTTP out, real engines behind?"""

import pytest

pytest.register_assert_rewrite("tests.acceptance.scenarios")
