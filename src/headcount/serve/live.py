"""What only a live model can do: look at a new sentence, switch heads off, prune. Model and task are opened from what the run records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headcount.errors import ArtefactError, DataError, HeadcountError
from headcount.report import collect
from headcount.report._attention import Maps
from headcount.runs.store import Run
from headcount.serve.wants import Unwanted, fields_of, number, places, text, truth

EXAMPLES, TOKENS, NEW_TOKENS = 5000, 256, 64
"""The most examples an ablation reads, tokens a sentence may have, and tokens that are generated for it."""


class LiveRun:
    """A run with its model and task, opened when they are first needed."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.record = run.record()
        self.heads = [head for block in run.heads().blocks for head in block.heads]
        self.folder, self.why_not = _at_hand(self.record.model.name)
        self._model: Any = None
        self._task: Any = None
        self._tokenizer: Any = None
        self._dense: dict[int, Any] = {}
        self._lock = threading.RLock()

    def model(self) -> Any:
        """The model of the run; ArtefactError unless it has the weights that the run was made with."""
        with self._lock:
            if self._model is None:
                self._model = self._opened()
            return self._model

    def _opened(self) -> Any:
        from transformers.utils import logging

        from headcount.runs.weights import weight_hash
        from headcount.surgery import load

        logging.disable_progress_bar()  # the terminal is not where anybody waits
        if self.folder is None:
            raise ArtefactError(self.why_not)
        opened = self.record.config.get("opened", {})
        made = load(self.folder, auto=opened.get("auto"), dtype=opened.get("dtype", "auto")).eval()
        if weight_hash(made) != self.record.model.weights:
            raise ArtefactError(f"the model {self.record.model.name} is not the one of this run any more: its weights are others")
        return made

    def tokenizer(self) -> Any:
        """What the model reads by, None where its folder has none."""
        from headcount.tasks._reader import reader_of

        with self._lock:
            if self._tokenizer is None and self.folder is not None:
                self._tokenizer = reader_of(self.model(), self.folder)
            return self._tokenizer

    def task(self) -> Any:
        """The task of the run."""
        with self._lock:
            if self._task is None:
                self._task = self._opened_task()
            return self._task

    def _opened_task(self) -> Any:
        from headcount.tasks import open_task

        opened = self.record.config.get("opened")
        if opened is None:
            raise DataError(
                "run.json does not say how the task is opened: it was made in Python, or by an older headcount. Run the command again"
            )
        names = ("train", "eval", "max_length", "truncate", "seed", *(name for name in opened if name.endswith("_column")))
        options = {name: opened[name] for name in names if name in opened}
        options |= dict(pair.split("=", 1) for pair in opened.get("task_option", ()))
        return open_task(opened.get("task") or self.record.task or None, self.model(), self.tokenizer(), **options)

    def evaluated(self, limit: int) -> Any:
        """The whole model on the first examples of the report split."""
        from headcount.evaluate import evaluate

        if limit not in self._dense:
            self._dense[limit] = evaluate(self.model(), self.task(), limit=limit)
        return self._dense[limit]


def _at_hand(name: str) -> tuple[Path | None, str]:
    """The folder of a model, if it is on this machine; else why not. Nothing is fetched."""
    from headcount.surgery.source import local_folder

    try:
        return local_folder(name, local_files_only=True), ""
    except HeadcountError as error:
        return None, f"the model {name} is not on this machine: {error}"


def attend(live: LiveRun, asked: Any) -> dict[str, Any]:
    """The attention of all heads on a new sentence; of an encoder–decoder also on its translation, by the model itself if none is given."""
    given = fields_of(asked, ("text", "pair"))
    first, second = text(given["text"], "text"), text(given["pair"], "pair", optional=True)
    from headcount.portraits import attend as look

    model, tokenizer = live.model(), live.tokenizer()
    if tokenizer is None:
        raise ArtefactError(f"{live.record.model.name} has no tokenizer, so it reads no text")
    sentences, arrays = look(model, _corpus(live, str(first), second), tokenizer)
    blocks = live.run.heads().blocks
    maps = {(int(name.partition("/")[0]), int(name.partition("/")[2])): array for name, array in arrays.items()}
    return {"attention": Maps(sentences, maps, [len(block.heads) for block in blocks]).packed()}


def _corpus(live: LiveRun, first: str, second: str | None) -> Any:
    from dataclasses import replace

    from headcount.checks import positions
    from headcount.roles import corpus_of
    from headcount.text.annotated import pair
    from headcount.text.plain import plain

    model, tokenizer = live.model(), live.tokenizer()
    how = _alignment(live)
    sentence = plain(first, "the sentence")
    if getattr(model.config, "is_encoder_decoder", False):
        sentence = replace(sentence, target=plain(second if second is not None else _translated(live, first, how), "its translation"))
    elif second is not None:
        sentence = pair(sentence, plain(second, "its second text"))
    most = min(TOKENS, positions(model) or TOKENS)
    return corpus_of(model, [sentence], tokenizer, **{**how, "max_length": min(how.get("max_length") or most, most)})


def _alignment(live: LiveRun) -> dict[str, Any]:
    """How the task of the run meets its tokenizer; as the tokenizer is, where the task cannot be opened."""
    try:
        texts = live.task().texts
    except HeadcountError:
        return {}
    return {} if texts is None else {name: value for name, value in texts.alignment.items() if name != "truncate"}


def _translated(live: LiveRun, first: str, how: Mapping[str, Any]) -> str:
    """What the model itself says, greedily."""
    import torch

    model, tokenizer = live.model(), live.tokenizer()
    ids = tokenizer(first, add_special_tokens=how.get("add_special_tokens", True))["input_ids"] + list(how.get("end", ()))
    with torch.no_grad():
        made = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1)
    said = tokenizer.decode(made[0], skip_special_tokens=True).strip()
    if not said:
        raise DataError("the model says nothing about this sentence; give its translation as the second text")
    return said


def ablate(live: LiveRun, asked: Any) -> dict[str, Any]:
    """The metric with heads gated off, against the whole model on the same first examples."""
    given = fields_of(asked, ("heads", "limit"))
    gone, limit = places(given["heads"], "heads", len(live.heads), least=1), number(given["limit"], "limit", 2, EXAMPLES)
    from headcount.evaluate import evaluate
    from headcount.gates import mask
    from headcount.report._plain import short
    from headcount.runs.outcomes import compare_with

    task, dense = live.task(), live.evaluated(limit)
    with mask(live.model(), [live.heads[place] for place in gone]):
        other = evaluate(live.model(), task, limit=limit)
    found = compare_with(dense, other, task.metric.total if task.metric else None)
    name = "metric" if "metric" in found else "loss"
    change = found[name]
    return {
        "metric": dense.metric if name == "metric" else "loss",
        "value": short(other.value if name == "metric" else other.loss),
        "dense": short(dense.value if name == "metric" else dense.loss),
        "difference": short(change.difference),
        "low": short(change.low),
        "high": short(change.high),
        "p": short(change.p, 3),
        "test": change.by,
        "n": dense.n_examples,
    }


def prune(live: LiveRun, asked: Any) -> dict[str, Any]:
    """Prunes to so many heads by a method of the run, or of the registry, and writes the model into the run folder."""
    given = fields_of(asked, ("method", "keep", "protect", "repair"))
    method, keep = str(text(given["method"], "method")), number(given["keep"], "keep", 1, len(live.heads))
    protect, repair = places(given["protect"], "protect", len(live.heads)), truth(given["repair"], "repair")
    from headcount.pruning import Pruning, check_wish
    from headcount.report._curves import dense_of

    wish = _wish(live, method, keep, [live.heads[place] for place in protect], repair)
    check_wish(live.model(), wish)
    task, dense = live.task(), dense_of(live.run)
    limit = dense.n_examples if dense is not None else None
    command = f"headcount serve {live.run.folder.name}: prune by {method}, {keep} heads"
    with Run.lead(live.run.folder, command=command) as run:
        pruning = Pruning(run, live.model(), task, limit=limit, command=command, companions=live.folder)
        pruning.dense()
        cell, _ = pruning.kept(wish)
        run.present(cell)
        folder = pruning.place(cell.spec)
    curves = collect(live.run).report["runs"][0]["curves"]
    removed = [live.heads.index(head) for head in cell.content["removed"]]
    point = next(point for point in curves["points"] if point["removed"] == removed and point["keep"] == len(live.heads) - len(removed))
    return {"folder": str(folder), "point": point}


def _wish(live: LiveRun, method: str, keep: int, protect: list[str], repair: bool) -> Any:
    """What is asked for: as a model of the run by that name was made, or by a method of the registry."""
    from dataclasses import replace

    from headcount.pruning import Wish, parse_method
    from headcount.runs.outcomes import PRUNED, method_name

    protected = tuple(protect)
    for cell in live.run.results(PRUNED).values():
        if method_name(cell.content["wish"]) == method:
            return replace(Wish.of(cell.content["wish"]), keep=keep, seed=0, repair=repair, limit=None, protected=protected)
    name, options = parse_method(method)
    return Wish(name, keep, repair=repair, options=options, protected=protected)


ACTIONS: dict[str, Callable[[LiveRun, Any], Mapping[str, Any]]] = {"attend": attend, "ablate": ablate, "prune": prune}

__all__ = ["ACTIONS", "LiveRun", "Unwanted"]
