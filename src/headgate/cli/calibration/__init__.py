"""Measurements and simulations behind `headgate calibrate`."""
