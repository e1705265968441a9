"""What holds for every test?"""

from hypothesis import settings

# No test fails because the machine was busy; pytest-timeout bounds the whole test instead. The rest is Hypothesis' own
# profile, which in CI is its "ci": the same examples every time, so that red means changed code.
settings.register_profile("headgate", settings(), deadline=None)
settings.load_profile("headgate")
