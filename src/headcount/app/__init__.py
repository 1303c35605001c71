"""The shell: the command line (`cli`), what its commands share (`console`), the local server (`serve`) and the entry
point of `headcount`. Everything that is written for people is written here: sentences, tables, options of the command
line and progress. It imports every other room, and no room imports it.
"""
