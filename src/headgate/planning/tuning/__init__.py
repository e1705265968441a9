"""Tuning: which change of one setting keeps the objectives better, or as well for less money?"""
