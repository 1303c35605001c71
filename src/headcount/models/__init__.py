"""Live models: where their heads are (HeadMap), gates that scale heads, observation of what heads compute, inputs to
try a model with, and small models for tests. Imports core.
"""
