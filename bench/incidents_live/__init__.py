"""Measure how quickly and correctly a live gateway diagnoses incidents."""
