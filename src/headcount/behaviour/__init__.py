"""Behaviour: what every head does. Measures the attention of heads against the sieves of roles, tests it over
sentences, and profiles what heads attend to. Imports core, runs, models and data.
"""
