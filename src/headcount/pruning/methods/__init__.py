"""The pruners, one file each, found by file name."""
