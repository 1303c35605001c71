"""The shell: the command line, what its commands share, the local server and notebook views. All sentences, tables and
options for people are written here. Imports every other room; no room imports it.
"""
