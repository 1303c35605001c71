"""Small models of every architecture with random weights, built in memory from reduced configurations, for tests and
for the census of supported models.
"""
