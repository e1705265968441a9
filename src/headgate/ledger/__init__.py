"""Where are the facts kept that must outlast every process?"""
