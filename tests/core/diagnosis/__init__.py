"""Does the diagnosis see what is wrong, and nothing else?"""
