"""Surgery: cutting heads out for good, saving and loading what is left, importing and exporting. It chooses no heads."""

from headcount.surgery.cost import Cost, cost
from headcount.surgery.cut import cut, removed_parameters
from headcount.surgery.legacy import load_legacy
from headcount.surgery.load import load, register, unregister
from headcount.surgery.save import save

__all__ = ["Cost", "cost", "cut", "load", "load_legacy", "register", "removed_parameters", "save", "unregister"]
