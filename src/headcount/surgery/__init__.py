"""Surgery: cutting heads out of weights, verifying the cut against gates, saving, loading and exporting models, and
what models cost. Imports core, runs, models and data.
"""
