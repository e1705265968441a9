"""Measures a cell's scheduler with many long streams open, and with many engines watched."""
