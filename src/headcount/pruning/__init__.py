"""From a request (PruneSpec) to the smaller model: the base class of pruners, the choice of heads within a budget,
repair of the heads that stay, and training of gates and weights. It imports all rooms before it: scores, roles and
surgery among them.
"""
