"""Traces of recorded traffic: anonymisation, the trace file and the import of access logs."""
