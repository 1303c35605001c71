"""Settings of a scoring pass. Imports no torch, so that the command line can derive its options from them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

from headcount.core.normalisation import Normalise
from headcount.core.options import Configurable, option


@dataclass(frozen=True)
class ScoreSettings(Configurable):
    """Everything beside model, data and method that determines a score; values are checked when the object is made."""

    name: ClassVar[str] = "score"
    _: KW_ONLY
    normalise: Normalise = option(
        "published",
        "published: as belongs to the method (gradient: by the ℓ2 norm of each layer); or none, layer, global, standard for all.",
    )
    split: Literal["calibration", "selection", "report"] = option("calibration", "The split of the task to read.")
    limit: int | None = option(None, "How many examples to read at most.", minimum=1)
    batch_size: int | None = option(None, "Examples per batch; by default that of the task, halved when memory runs out.", minimum=1)
    seed: int = option(0, "Seed of methods that draw random numbers.", minimum=0)
    checkpointing: bool = option(False, "Less memory, more time in the backward pass.")
    generate: bool = option(False, "Let ablations generate text for metrics such as BLEU (slow).")
    adaptive: int | None = option(None, "Ablate only until the K lowest units are known.", minimum=1)

    def to_dict(self) -> dict[str, Any]:
        """Returns every setting as plain data, defaults included."""
        return {name: value for name, value in super().to_dict().items() if name != "name"}
