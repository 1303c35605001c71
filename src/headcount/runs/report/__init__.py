"""The report of a run: collects its artifacts into the data of the page (`contract`), and writes the page and the
figures.
"""
