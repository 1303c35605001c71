"""Workflows: the functions of the rooms below, made resumable in a run folder. Each step is computed once and taken
from the folder afterwards.
"""
