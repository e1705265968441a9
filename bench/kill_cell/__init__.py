"""Who loses anything when a part of a cell is killed? Real processes, killed one after another (`just kill-cell`)."""
