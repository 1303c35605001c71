"""The conformance laws that gates, cuts, importances, roles and pruners must obey, as functions that plug-ins can run
on their own classes, and the census of the model classes of transformers. It imports all rooms but the shell.
"""
