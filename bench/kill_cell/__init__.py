"""Kill parts of a live cell one after another and count lost requests (`just kill-cell`)."""
