"""Run folders: how finished work is stored as artifacts, locked, verified, tabulated and turned into a report. All of
it is plain files with a schema version, each written atomically. It imports core, and no torch, so that a run can be
read anywhere.
"""
