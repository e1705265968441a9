"""The elected scheduler of a cell, and the election."""
