"""The side of transformers 4.57 of against_head_mask.py: gradient importance as run_bertology.py computes it, and one head masked after
another.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from batches import read
from sidebyside import serve
from transformers import AutoModelForSequenceClassification


def main() -> None:
    torch.set_num_threads(1)
    model: Any = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], attn_implementation="eager").eval()
    shape = (model.config.num_hidden_layers, model.config.num_attention_heads)

    def gradient(path: str, resets: bool) -> dict[str, Any]:
        """The absolute gradient of the mask, added up over batches; the script never resets it, the paper's formula does."""
        batches, mask, total = read(path), torch.ones(shape, requires_grad=True), torch.zeros(shape)
        start = time.process_time()
        for batch in batches:
            model(**batch, head_mask=mask).loss.backward()
            assert mask.grad is not None
            total += mask.grad.abs()
            if resets:
                mask.grad = None
        seconds = time.process_time() - start
        model.zero_grad()
        return {"seconds": seconds, "values": (total / len(batches)).flatten().tolist()}

    @torch.no_grad()
    def loss(batches: list[dict[str, torch.Tensor]], mask: torch.Tensor) -> float:
        sizes = [len(batch["labels"]) for batch in batches]
        return sum(float(model(**b, head_mask=mask).loss) * n for b, n in zip(batches, sizes, strict=True)) / sum(sizes)

    def ablation(path: str) -> dict[str, Any]:
        """How much the mean loss rises without each head."""
        batches, values = read(path), []
        start = time.process_time()
        whole = loss(batches, torch.ones(shape))
        for layer in range(shape[0]):
            for head in range(shape[1]):
                mask = torch.ones(shape)
                mask[layer, head] = 0
                values.append(loss(batches, mask) - whole)
        return {"seconds": time.process_time() - start, "values": values}

    serve({"gradient": gradient, "ablation": ablation})


if __name__ == "__main__":
    main()
