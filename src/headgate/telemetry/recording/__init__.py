"""Recordings of the gateway's traffic for `headgate record`."""
