"""Small models of every architecture with random weights, built in memory from shrunken configurations, for tests and
the census.
"""
