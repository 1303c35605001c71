"""The conformance laws that gates, cuts, importances, roles and pruners must obey, public for plug-ins, and the census
of model classes.
"""
