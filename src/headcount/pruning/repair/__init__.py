"""Repair: refitting the output projections of kept heads in closed form, so that a block without the removed heads
gives nearly what it gave before.
"""
