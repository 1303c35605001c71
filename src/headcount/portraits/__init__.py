"""Portraits: what every head attends to, over a text: distances, parts of speech, relations, examples, its nearest heads, a few whole maps."""

from __future__ import annotations

from headcount.portraits._files import portraits_into
from headcount.portraits.make import Portraits, attend, portray

__all__ = ["Portraits", "attend", "portraits_into", "portray"]
