"""Repair without training: refits the output projection of every pruned block in closed form, so that the heads that
stay give nearly the output that all heads gave.
"""
