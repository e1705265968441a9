"""Messages between the processes of a cell, and the interface of the store that transports them."""
