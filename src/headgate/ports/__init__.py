"""Interfaces between the parts of Headgate, and the values that they exchange."""
