"""The importance methods, one file each: a frozen dataclass whose name is that of its file."""
