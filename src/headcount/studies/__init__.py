"""The experiments of the papers, one file each, found by file name: what a study measures, its tables and its verdict in one sentence.

A study imports every room below this one, and nothing of the command line. Files whose name begins with an underscore are shared by several studies.
"""
