"""The command line: one file per command, which declares its options, checks them and calls its job. Imports no torch."""
