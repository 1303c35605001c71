"""`headcount serve`: the report of a run with its live model behind it, as a web server on this machine. It answers the
actions of web/src/contract.ts (attention of a new sentence, ablation, pruning) and refuses requests of other sites.
"""
