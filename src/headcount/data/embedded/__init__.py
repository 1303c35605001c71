"""Data and models that come with the package, for the demo and for tests without a network: two small languages,
English and Tavi, drawn by seeded generators, and models that were trained on them.
"""
