"""Diagnosis: finds the cause of problems in each pool from the scheduler's events, and recommends the next step."""
