"""How many endpoints should each pool have?"""
