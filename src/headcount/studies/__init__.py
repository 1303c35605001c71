"""The experiments of the papers, one file each, found by file name: the options of a study, its tables and its verdict in one sentence.

A study imports every room below this one, and nothing of the command line. Its file imports neither torch nor numpy, so that its help is shown at
once; what it measures stands in the file of the same name in `_measure`. Other files whose name begins with an underscore are shared.
"""
