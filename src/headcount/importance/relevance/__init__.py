"""Layer-wise relevance propagation (LRP): records the operations of a forward pass on a tape, and passes relevance back
from the output to every head by the published rules.
"""
