"""The tasks, one file each, found by file name. A file without an underscore in front of its name is a task."""
