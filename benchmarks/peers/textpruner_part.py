"""TextPruner's side of against_textpruner.py, in an environment with transformers 4: scores and removes heads, counts right answers,
loads again.
"""

from __future__ import annotations

import copy
import logging
import sys
import tempfile
import time
from typing import Any

import torch
from batches import Batch, read
from sidebyside import serve
from textpruner import GeneralConfig, TransformerPruner, TransformerPruningConfig
from transformers import AutoModelForSequenceClassification


def right(model: Any, batches: list[Batch]) -> int:
    with torch.no_grad():
        return sum(int((model(**batch).logits.argmax(-1) == batch["labels"]).sum()) for batch in batches)


def loads(folder: str, model: Any, batch: Batch) -> str:
    """What plain loading of the saved folder gives, in TextPruner's own environment."""
    try:
        again = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        with torch.no_grad():
            same = torch.allclose(again(**batch).logits, model(**batch).logits, atol=1e-5)
        return "yes" if same else "loads, other output"
    except Exception as error:  # whatever a peer raises is its answer
        return f"no, {type(error).__name__}"


def main() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    dense: Any = AutoModelForSequenceClassification.from_pretrained(sys.argv[1]).eval()
    layers = dense.config.num_hidden_layers

    def prune(path: str, keep: int, rounds: int, even: bool, logits: bool, test: str | None, folder: str | None) -> dict[str, Any]:
        """Prunes to `keep` heads in `rounds` rounds; with `test` and `folder` counts right answers and saves."""
        model, data = copy.deepcopy(dense), read(path)
        with tempfile.TemporaryDirectory() as work:
            general = GeneralConfig(use_device="cpu", output_dir=folder or work)
            wanted = TransformerPruningConfig(
                target_ffn_size=dense.config.intermediate_size,
                target_num_of_heads=keep // layers if keep % layers == 0 else keep / layers,
                pruning_method="iterative",
                head_even_masking=even,
                n_iters=rounds,
                use_logits=logits,
            )
            start = time.process_time()
            try:
                pruner = TransformerPruner(model, transformer_pruning_config=wanted, general_config=general)
                saved = pruner.prune(dataloader=data, save_model=folder is not None)
            except Exception as error:  # whatever a peer raises is its answer
                return {"error": f"{type(error).__name__}: {error}"[:100]}
        answer: dict[str, Any] = {"seconds": time.process_time() - start, "heads": int(pruner.head_mask.sum())}
        if test is not None:
            with torch.no_grad():
                shown = model(**data[0]).logits.tolist()
            answer |= {"right": right(model, read(test)), "reload": loads(saved, model, data[0]), "folder": saved, "logits": shown}
        return answer

    serve({"prune": prune})


if __name__ == "__main__":
    main()
