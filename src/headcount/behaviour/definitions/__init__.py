"""The definitions of when a head has a role, one file each: a frozen dataclass whose name is that of its file."""
