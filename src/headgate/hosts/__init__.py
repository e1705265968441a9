"""Where does the scheduler run? Each host carries events to it and commands from it."""
