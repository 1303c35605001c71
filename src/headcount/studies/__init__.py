"""Studies: the papers' experiments as commands, one file each, found by its name."""
