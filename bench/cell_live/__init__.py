"""What does a cell cost beside a single gateway, and how much can its scheduler take? (`just bench-cell`)"""
