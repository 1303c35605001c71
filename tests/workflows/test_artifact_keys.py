"""The key of an artifact holds every option of the request: equal requests give one artifact, different ones two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import headcount as hc
from headcount.data.embedded.tokenizer import build_tokenizer
from headcount.data.task import task_key
from headcount.models.provenance import model_record
from headcount.models.tiny.build import tiny_model
from headcount.runs.describe import describe_run
from headcount.runs.results import EVALUATION
from headcount.runs.store import Run
from headcount.workflows.evaluate import evaluate_into


def test_an_evaluation_with_another_task_option_is_another_artifact(tmp_path: Path) -> None:
    """`num_beams=2` reused the evaluation with one beam, since the key held the name of the task alone."""
    tokenizer = build_tokenizer()
    tokens = {"vocab_size": len(tokenizer), "decoder_vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    model = tiny_model("marian", auto="AutoModelForSeq2SeqLM", decoder_start_token_id=0, forced_eos_token_id=3, **tokens)
    texts = [f"demo/translation(size=2;max_new_tokens=3;num_beams={beams})" for beams in (1, 2, 1)]
    with Run.lead(tmp_path / "run") as run:
        run.stage_records(describe_run(model_record(model, "tiny"), command="test", seed=0), hc.HeadMap.of(model))
        for text in texts:
            evaluate_into(run, "dense", model, hc.open_task(text, model, tokenizer))
        assert len(run.artifacts(EVALUATION)) == 2


def test_the_key_of_a_task_holds_all_options() -> None:
    model = tiny_model("bert", auto="AutoModelForMaskedLM", vocab_size=len(build_tokenizer()))
    keys = [task_key(hc.open_task(text, model)) for text in ("demo/text(size=2)", "demo/text( size=2; num_beams=1 )")]
    assert keys[0] == keys[1]
    generation = {"metric": "bleu", "num_beams": 1, "max_new_tokens": None}
    assert keys[0]["options"] == {"name": "demo", "variant": "text", "size": 2, **generation}


LOSSES = """
from headcount.data.task import Task, pad, task_key

def inner(output, batch):
    return (lambda value: output[value] if value in {"logits", "loss", "scores"} else [x for x in output])("logits").mean()

for loss in (inner, lambda output, batch: output.mean(), lambda output, batch: output.sum()):
    print(task_key(Task("own", [{}], [{}], [{}], collate=pad, loss=loss))["loss"])
"""


def test_the_key_of_a_loss_is_that_of_its_code_in_every_process() -> None:
    """A function within a loss has an address, and a set an order, that differ in every process; losses that differ by a name are two."""
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    keys = [
        subprocess.run([sys.executable, "-c", LOSSES], env=env, capture_output=True, text=True, check=True).stdout for env in environments
    ]
    assert keys[0] == keys[1]
    assert len({line.split()[-1] for line in keys[0].splitlines()}) == 3
