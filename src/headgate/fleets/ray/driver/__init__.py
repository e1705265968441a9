"""What runs where Ray is? A program in a folder of its own, because the folder comes first on its path."""
