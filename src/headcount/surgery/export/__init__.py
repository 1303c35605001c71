"""Export targets, one file each: a frozen dataclass derived from `headcount.surgery.export_base.ExportTarget`. Files that start with an
underscore are no targets.
"""
