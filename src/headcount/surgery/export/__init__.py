"""The export targets, one file each: a frozen dataclass derived from `headcount.surgery.export_base.ExportTarget`."""
