"""Does a cell keep its promises whatever dies, lies or is late?"""
