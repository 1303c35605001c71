"""The command line: one file per command. Commands parse options, call a workflow and print; they hold no logic."""
