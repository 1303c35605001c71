"""The roles, one file each, found by file name."""
