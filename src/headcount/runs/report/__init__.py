"""The report: collects the artifacts of a run into the data of the page, and writes the page, tables and figures."""
