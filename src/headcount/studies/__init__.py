"""The experiments of the papers, one file each, found by file name."""
