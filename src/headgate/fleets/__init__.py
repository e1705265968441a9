"""Where do endpoints come from?"""
