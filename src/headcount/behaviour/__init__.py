"""What each head does. A role, such as attending to the previous token, is a sieve: a set of query and key tokens. This
room measures how much attention of every head falls into the sieve of every role, tests that over sentences, and
profiles what heads attend to. It imports core, models and data.
"""
