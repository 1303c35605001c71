"""The shell: cli declares the options of each command, jobs do what it asks for, console holds what they share, serve the local
server. All sentences, tables and options for people are written here. Imports every other room; no room imports it.
"""
