"""Importance: how much every head matters. The scoring engine, the base classes of methods, and two large engines
(exact ablation by replay, relevance propagation). Imports core, runs, models and data.
"""
