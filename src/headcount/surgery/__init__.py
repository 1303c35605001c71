"""Surgery: cutting heads out for good, saving and loading what is left, importing and exporting. It chooses no heads."""

from headcount.surgery.cut import cut

__all__ = ["cut"]
