"""The importance methods, one file each, found by file name."""
