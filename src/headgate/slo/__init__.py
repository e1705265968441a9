"""What does Prometheus have to be told so that it wakes the right person, and Grafana so that it shows why?

All of it is made of plain values: no clock, no file, no network.
"""
