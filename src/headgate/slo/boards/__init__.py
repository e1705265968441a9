"""What stands on each dashboard?"""
