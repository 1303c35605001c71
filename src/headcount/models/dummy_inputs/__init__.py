"""Inputs that a model accepts, made from its configuration alone: used to prove gates and cuts where the user passes
no inputs.
"""
