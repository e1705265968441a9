"""Which requests become traces, and how do these reach a collector?"""
