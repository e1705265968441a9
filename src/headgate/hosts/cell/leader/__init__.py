"""The elected scheduler of a cell, and its election."""
