"""The functions of the rooms below as resumable steps of a run folder: evaluate, score, roles, profiles, prune, and
analyze, which does all of them. Every step is computed once and read from the folder afterwards.
"""
