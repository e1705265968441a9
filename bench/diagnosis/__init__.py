"""Does the diagnosis say what is wrong, soon enough, and nothing where nothing is?"""
