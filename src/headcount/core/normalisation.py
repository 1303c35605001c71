"""How scores of heads can be normalised."""

from __future__ import annotations

from typing import Literal

Scaling = Literal["none", "layer", "global", "standard"]
"""How scores were normalised: not at all, by the ℓ2 norm of their block ("layer") or of all, or to mean 0 and deviation 1 within each block."""
Normalise = Literal["published", "none", "layer", "global", "standard"]
"""What can be asked for: "published" is the normalisation that belongs to the method."""
NORMALISATIONS: tuple[Normalise, ...] = ("published", "none", "layer", "global", "standard")
