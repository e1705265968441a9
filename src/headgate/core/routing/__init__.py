"""Where does it go? The endpoints as the scheduler sees them, and the choice among them."""
