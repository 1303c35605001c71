"""The command line, one file per command, named after it. A command parses its options, calls a workflow or a library
function, and prints the result; it holds no logic of its own. A file whose name begins with an underscore is no
command.
"""
