"""What is wrong with what was asked for?"""


class Problem(Exception):
    """The run cannot begin. The message says why and what to change."""
