"""What each command does once its options are read: one file per command. These modules import torch or numpy, so the file of the
command in cli/, which declares its options, imports its job only when it runs.
"""
