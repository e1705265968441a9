"""Does a live gateway name what is wrong, for as long as it is wrong, and nothing else?"""
