"""TransformerLens' side of against_transformer_lens.py, in an environment that has it: scores of its head detector on given tokens."""

from __future__ import annotations

import sys
from typing import Any

import torch
from sidebyside import serve
from transformer_lens.head_detector import HEAD_NAMES, detect_head
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM, AutoTokenizer


class Tokens:
    """A model that reads tokens where the detector hands it a text."""

    def __init__(self, bridge: Any) -> None:
        self.bridge, self.cfg = bridge, bridge.cfg

    def to_tokens(self, ids: Any) -> torch.Tensor:
        return torch.tensor([list(ids)])

    def run_with_cache(self, *given: Any, **options: Any) -> Any:
        return self.bridge.run_with_cache(*given, **options)


def opened(folder: str, gguf: str | None) -> Tokens:
    extra = {"gguf_file": gguf} if gguf else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **extra).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, **extra)
    return Tokens(TransformerBridge.boot_transformers(folder, hf_model=model, tokenizer=tokenizer, device="cpu"))


def main() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    model: Any = opened(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)

    def detect(sequences: list[list[int]], exclude_bos: bool) -> dict[str, list[float]]:
        """The mean score of every head over sequences, by pattern, layer by layer."""
        totals = {name: torch.zeros(model.cfg.n_layers, model.cfg.n_heads) for name in HEAD_NAMES}
        for ids in sequences:
            _, cache = model.run_with_cache(model.to_tokens(ids), remove_batch_dim=True)
            seq: Any = tuple(ids)
            for name in HEAD_NAMES:
                totals[name] += detect_head(model, seq, name, cache=cache, exclude_bos=exclude_bos)
        return {name: (total / len(sequences)).flatten().tolist() for name, total in totals.items()}

    serve({"detect": detect})


if __name__ == "__main__":
    main()
