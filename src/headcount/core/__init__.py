"""The foundation of all rooms: errors, declared options, registries, files that are written atomically, statistics
(`stats`), and the types of results that rooms exchange, such as Head, Scores, RoleTable, Evaluation, Budget and Plan.
It imports nothing else of headcount, and no torch.
"""
