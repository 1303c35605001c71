"""The two embedded languages, English and Tavi, drawn by seeded generators, and the small models that were trained on
them.
"""
