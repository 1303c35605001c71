"""Layer-wise relevance propagation through any model, by a tape of its operations."""
