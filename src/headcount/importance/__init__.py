"""How much each head matters. The engine that computes scores chunk by chunk, the base classes of importance methods,
and two engines that are rooms of their own: exact ablation (`replay`) and relevance propagation (`relevance`). It
imports core, models and data.
"""
