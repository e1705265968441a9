"""What the processes of a cell say to each other, and the interface of the store that carries it."""
