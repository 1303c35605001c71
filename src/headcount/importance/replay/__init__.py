"""Exact ablation: runs a model once, then replays only the layers that an intervention on a head can reach."""
