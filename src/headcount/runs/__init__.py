"""Run folders: how finished work is stored, locked, verified, tabulated and turned into a report. Everything is a
plain file with a schema version, written atomically. Imports core, and no torch, so that a run can be read
anywhere.
"""
