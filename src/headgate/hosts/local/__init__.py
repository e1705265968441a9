"""How does the scheduler run inside one gateway process, with nothing else installed?"""
