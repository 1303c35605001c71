"""TransformerLens' head detector against headcount's roles: do they find the same heads on the same tokens?

    python benchmarks/peers/against_transformer_lens.py --python PYTHON --model MODEL --text FILE [--gguf NAME] [--sequences 64]

PYTHON is that of an environment with transformer-lens, MODEL a decoder with its tokenizer, FILE plain text. Two kinds of sequences:
those of the role `induction` (random tokens, twice in a row) and pieces of the text. Its scores previous_token_head,
duplicate_token_head and induction_head are set beside the biases of the roles offset:-1, same and induction: rank correlation over all
heads, and how many of the top heads are the same. Tables go to docs/peers.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from sidebyside import Peer, put, spearman, table
from transformers import AutoModelForCausalLM, AutoTokenizer

import headcount as hc
from headcount.behaviour.base import Corpus, make_wordless_sequence
from headcount.behaviour.catalogue.induction import Induction
from headcount.core.role_table import RoleTable

DOCUMENT = Path(__file__).parents[2] / "docs" / "peers.md"
PAIRS = (("offset:-1", "previous_token_head"), ("same", "duplicate_token_head"), ("induction", "induction_head"))


def pieces(tokenizer: Any, text: str, number: int, length: int) -> Corpus:
    """The first pieces of a text, each with the model's first token in front."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    first = tokenizer.bos_token_id
    cut = [[first, *ids[start : start + length]] for start in range(0, number * length, length)]
    return Corpus(tuple(make_wordless_sequence(piece, [True]) for piece in cut if len(piece) == length + 1))


def biases(made: RoleTable, heads: hc.HeadMap, role: str) -> list[float]:
    """The bias of every head for a role."""
    found = {row.head: row.bias for row in made.rows if row.role == role}
    return [found[head] for head in heads]


def shared(first: list[float], second: list[float], top: int) -> int:
    best = [sorted(range(len(values)), key=lambda i, values=values: -values[i])[:top] for values in (first, second)]
    return len(set(best[0]) & set(best[1]))


def compared(model: Any, peer: Peer, corpora: dict[str, Corpus], top: int) -> list[list[str]]:
    heads, lines = hc.HeadMap.of(model), []
    for name, corpus in corpora.items():
        sequences = [list(sentence.ids) for sentence in corpus.sentences]
        ours = hc.roles(model, corpus, only=[role for role, _ in PAIRS])
        for exclude in (False, True):
            theirs = peer.ask("detect", sequences=sequences, exclude_bos=exclude)
            for role, pattern in PAIRS:
                mine, scores = biases(ours, heads, role), theirs[pattern]
                best = str(heads[max(range(len(mine)), key=mine.__getitem__)]), str(heads[max(range(len(scores)), key=scores.__getitem__)])
                line = [
                    name,
                    role,
                    pattern,
                    "yes" if exclude else "no",
                    f"{spearman(mine, scores):.3f}",
                    f"{shared(mine, scores, top)} of {top}",
                ]
                lines.append([*line, f"{best[0]} / {best[1]}"])
                print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True, help="the python of an environment with transformer-lens")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--gguf", help="the file of the folder that holds the weights, if they are in this format")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--name", default="transformer-lens", help="of the place in the document")
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    extra = {"gguf_file": options.gguf} if options.gguf else {}
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, **extra).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model, **extra)
    repeated = Induction().probe(model, 0)
    if repeated is None:
        raise SystemExit(f"{options.model} is no decoder that induction can be tested on")
    text = pieces(tokenizer, options.text.read_text(encoding="utf-8"), options.sequences, options.length)
    random = Corpus(repeated.sentences[: options.sequences])
    peer = Peer(options.python, "lens_part.py", str(options.model), *([options.gguf] if options.gguf else []))
    lines = compared(model, peer, {"random, repeated": random, "text": text}, options.top)
    peer.close()
    header = (
        "tokens",
        "role",
        "their pattern",
        "first token excluded",
        "Spearman",
        f"same among the top {options.top}",
        "best: ours / theirs",
    )
    put(options.document, options.name, table(header, lines, left=4))


if __name__ == "__main__":
    main()
