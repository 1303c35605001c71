"""Inputs that a model accepts, made from its configuration alone: used to check gates and cuts if the user passes no
inputs.
"""
