"""BertViz' side of against_bertviz.py, in an environment that has it: the HTML of its views for given attention and tokens.

python bertviz_part.py ATTENTION.npz TOKENS.json OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from bertviz import head_view, model_view

VIEWS = {"model_view": model_view, "head_view": head_view}


def main() -> None:
    source, tokens, out = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
    with np.load(source) as arrays:
        attention = [torch.from_numpy(arrays[str(layer)]) for layer in range(len(arrays.files))]
    for name, view in VIEWS.items():
        page = view(attention, tokens, html_action="return").data
        (out / f"{name}.html").write_text(f"<!doctype html><meta charset=utf-8><body>{page}", encoding="utf-8")


if __name__ == "__main__":
    main()
