"""What commands share: groups of options, the session they print through, progress, opening models, tasks and run
folders.
"""
