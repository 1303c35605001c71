"""The tasks, one file each: a `TaskBuilder` whose name is that of its file, which makes a `Task` of a model and data. A
file whose name begins with an underscore is shared by several tasks.
"""
