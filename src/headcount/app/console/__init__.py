"""What the commands share: groups of options, the session that they print through, progress bars, and how models,
tasks, texts and run folders are opened from the words of a command line.
"""
