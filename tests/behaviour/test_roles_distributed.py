"""Roles of two real processes are those of one to the bit; a bad example of one process is an error of both.

This file is also the script that the processes run: it writes every number, then meets a token that the model does not know.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from forks import run_in_forks
from planting import VOCABULARY, annotated, tokenizer_of

import headcount as hc
from headcount.behaviour.corpus import read_corpus
from headcount.core.role_table import RoleTable
from headcount.models.tiny.build import tiny_model


def numbers(table: RoleTable) -> dict[str, Any]:
    """A table with floats as text that holds every bit."""
    rows = table.to_pandas().to_dict("records")
    exact = [{name: value.hex() if isinstance(value, float) else str(value) for name, value in row.items()} for row in rows]
    return {"rows": exact, "untested": dict(table.untested), "data": table.data}


def measure_tables() -> dict[str, Any]:
    """An encoder in float32 over more sentences than two processes take at once, and a decoder with its probes."""
    text = annotated(300)
    encoder = tiny_model("bert", vocab_size=VOCABULARY, dtype=torch.float32)
    decoder = tiny_model("llama", vocab_size=VOCABULARY, num_key_value_heads=2, bos_token_id=2, pad_token_id=0)
    tables = [
        hc.roles(encoder, read_corpus(encoder, text, tokenizer_of("[CLS] $A [SEP]"))),
        hc.roles(
            decoder, read_corpus(decoder, text[:150], tokenizer_of("[CLS] $A")), only=["offset", "sink", "syntax", "induction", "retrieval"]
        ),
    ]
    return {str(position): numbers(table) for position, table in enumerate(tables)}


def unknown_token() -> str:
    """What is said about example 150, which falls to the second process."""
    encoder = tiny_model("bert", vocab_size=1000)
    corpus = read_corpus(encoder, annotated(200), tokenizer_of("[CLS] $A [SEP]"))
    sentences = list(corpus.sentences)
    sentences[150] = replace(sentences[150], ids=(1234, *sentences[150].ids[1:]))
    try:
        hc.roles(encoder, replace(corpus, sentences=tuple(sentences)), only=["local"])
    except hc.HeadcountError as error:
        return str(error)
    return "nothing"


def test_roles_of_two_processes_are_those_of_one_to_the_bit(tmp_path: Path) -> None:
    process = run_in_forks(__file__, tmp_path / "found")
    assert process.returncode == 0, process.stderr[-2000:]
    alone, both = measure_tables(), [json.loads((tmp_path / f"found.{rank}").read_text()) for rank in (0, 1)]
    assert "example 150: token id 1234" in unknown_token()
    for of_process in both:
        assert of_process.pop("error") == unknown_token()
        assert of_process == alone
    roles = {row["role"] for row in alone["1"]["rows"]}
    assert {"offset:-1", "sink", "syntax:nsubj", "induction"} <= roles and len(alone["0"]["rows"]) == 300


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = measure_tables() | {"error": unknown_token()}
    Path(f"{sys.argv[1]}.{os.environ['RANK']}").write_text(json.dumps(result))
