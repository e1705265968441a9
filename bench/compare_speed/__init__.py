"""Comparison of this tree's speed with another commit's, side by side in one run (`just compare-speed`)."""
