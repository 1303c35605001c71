"""The foundation: errors, declared options, registries, atomic files, statistics, and the result types that every
other room exchanges (heads, plans, scores, evaluations, role tables). Imports nothing else of headcount, and no
torch.
"""
