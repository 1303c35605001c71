"""What only a live model can do: look at a new sentence, switch heads off, prune. Model and task are opened from what the run records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headcount.app.serve.wants import Unwanted, choice, fields_of, number, places, text, truth
from headcount.core.errors import ArtifactError, DataError, HeadcountError, UnknownTokens
from headcount.core.evaluation import compare_with
from headcount.core.files import reopened_model
from headcount.data.open_task import open_task
from headcount.data.text.annotated import pair
from headcount.data.text.sentences import plain
from headcount.models.provenance import weight_hash
from headcount.runs.report.attention import Maps
from headcount.runs.report.curves import dense_of, point_of
from headcount.runs.report.plain import short
from headcount.runs.results import PRUNED, method_label
from headcount.runs.store import Run

EXAMPLES, TOKENS, NEW_TOKENS = 5000, 512, 64
"""The most examples an ablation reads, tokens a sentence may have, and tokens that are generated for it."""
PRUNE = {"seed": 0, "floor": 0, "unit": "kv_group"}
"""What a request to prune need not say."""
MAX_SEED = 2**31 - 1


class LiveRun:
    """A run with its model and task, opened when they are first needed."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.record = run.record()
        self.heads = [head for block in run.heads().blocks for head in block.heads]
        self.opened: Mapping[str, Any] | None = self.record.config.get("opened")
        self.folder, self.why_not = _at_hand(reopened_model(self.record.model.name, self.record.config))
        self._model: Any = None
        self._task: Any = None
        self._tokenizer: Any = None
        self._dense: dict[int, Any] = {}
        self._lock = threading.RLock()

    def model(self) -> Any:
        """The model of the run; ArtifactError unless it has the weights that the run was made with."""
        with self._lock:
            if self._model is None:
                self._model = self._opened()
            return self._model

    def _opened(self) -> Any:
        from transformers.utils import logging

        from headcount.surgery.load import load

        logging.disable_progress_bar()  # the terminal is not where anybody waits
        if self.folder is None:
            raise ArtifactError(self.why_not)
        opened = self.opened or {}
        made = load(self.folder, auto=opened.get("auto"), dtype=opened.get("dtype", "auto")).eval()
        if weight_hash(made) != self.record.model.weights:
            raise ArtifactError(f"the model {self.record.model.name} is not the one of this run any more: its weights are others")
        return made

    def tokenizer(self) -> Any:
        """What the model reads by, None where its folder has none."""
        from headcount.data.readers.processor import reader_of

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
        opened = self.opened
        if opened is None or opened.get("own_task"):
            raise DataError(
                "run.json does not say how the task is opened: it was made in Python, or by an older headcount. Run the command again"
            )
        names = ("train", "eval", "max_length", "truncate", "limit", "seed", *(name for name in opened if name.endswith("_column")))
        options = {name: opened[name] for name in names if name in opened}
        options |= dict(pair.split("=", 1) for pair in opened.get("task_option", ()))
        return open_task(opened.get("task") or self.record.task or None, self.model(), self.tokenizer(), **options)

    def evaluated(self, limit: int) -> Any:
        """The whole model on the first examples of the report split."""
        from headcount.data.evaluate import evaluate

        if limit not in self._dense:
            self._dense[limit] = evaluate(self.model(), self.task(), limit=limit)
        return self._dense[limit]


def _at_hand(name: str) -> tuple[Path | None, str]:
    """The folder of a model, if it is on this machine; else why not. Nothing is fetched."""
    from headcount.surgery.source import local_folder

    try:
        return local_folder(name, local_files_only=True), ""
    except HeadcountError:
        return None, f"the model {name} is not on this machine, and nothing is fetched here"


def attend(live: LiveRun, asked: Any) -> dict[str, Any]:
    """The attention of all heads on a new sentence; of an encoder–decoder also on its translation, by the model itself if none is given."""
    given = fields_of(asked, ("text", "pair"))
    first, second = text(given["text"], "text"), text(given["pair"], "pair", optional=True)
    from headcount.behaviour.profiles.profile import attend as look

    model, tokenizer = live.model(), live.tokenizer()
    if tokenizer is None:
        raise ArtifactError(f"{live.record.model.name} has no tokenizer, so it reads no text")
    corpus, note = _corpus(live, str(first), second)
    sentences, arrays = look(model, corpus, tokenizer)
    blocks = live.run.heads().blocks
    maps = {(int(name.partition("/")[0]), int(name.partition("/")[2])): array for name, array in arrays.items()}
    return {"attention": Maps(sentences, maps, [len(block.heads) for block in blocks]).packed(), "note": note}


def _corpus(live: LiveRun, first: str, second: str | None) -> tuple[Any, str | None]:
    """The sentence as the model reads it, and a note where it does not know all of it."""
    import warnings
    from dataclasses import replace

    from headcount.behaviour.given import corpus_of
    from headcount.data.checks import positions

    model, tokenizer = live.model(), live.tokenizer()
    how = _alignment(live)
    most = min(TOKENS, positions(model) or TOKENS)
    most = min(how.get("max_length") or most, most)
    sentence = plain(first, "the sentence")
    _check_length(tokenizer, [[said for _, said in sentence.parts]], how, most)
    if getattr(model.config, "is_encoder_decoder", False):
        sentence = replace(sentence, target=plain(second if second is not None else _translated(live, first, how), "its translation"))
    elif second is not None:
        sentence = pair(sentence, plain(second, "its second text"))
    texts = [[said for _, said in side.parts] for side in (sentence, sentence.target) if side is not None]
    _check_length(tokenizer, texts, how, most)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownTokens)  # told by the note
        return corpus_of(model, [sentence], tokenizer, **{**how, "max_length": most}), _unknown(tokenizer, texts)


def _check_length(tokenizer: Any, texts: Sequence[Sequence[str]], how: Mapping[str, Any], most: int) -> None:
    for said in texts:
        ids = tokenizer(*said, add_special_tokens=how.get("add_special_tokens", True), verbose=False)["input_ids"]
        length = len(ids) + len(how.get("end", ()))
        if length > most:
            raise DataError(f"the sentence has {length} tokens; at most {most} are shown here. Give a shorter one")


def _unknown(tokenizer: Any, texts: Sequence[Sequence[str]]) -> str | None:
    """A note where tokens are unknown."""
    from headcount.data.text.unknown_tokens import unknown_id

    wanted = unknown_id(tokenizer)
    ids = [each for said in texts for each in tokenizer(*said, add_special_tokens=False, verbose=False)["input_ids"]]
    number = sum(each == wanted for each in ids) if wanted is not None else 0
    return f"{number} of {len(ids)} tokens are unknown to the tokenizer: the model reads them all as the same" if number else None


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

    from headcount.models.state import preserve

    model, tokenizer = live.model(), live.tokenizer()
    ids = tokenizer(first, add_special_tokens=how.get("add_special_tokens", True))["input_ids"] + list(how.get("end", ()))
    with torch.no_grad(), preserve(model):
        made = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1)
    said = tokenizer.decode(made[0], skip_special_tokens=True).strip()
    if not said:
        raise DataError("the model says nothing about this sentence; give its translation as the second text")
    return said


def ablate(live: LiveRun, asked: Any) -> dict[str, Any]:
    """The metric with heads gated off, against the whole model on the same first examples."""
    given = fields_of(asked, ("heads", "limit"))
    gone, limit = places(given["heads"], "heads", len(live.heads), least=1), number(given["limit"], "limit", 2, EXAMPLES)
    from headcount.data.evaluate import evaluate
    from headcount.data.mask import mask

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
    given = fields_of(asked, ("method", "keep", "protect", "repair"), PRUNE)
    method, keep = str(text(given["method"], "method")), number(given["keep"], "keep", 1, len(live.heads) - 1)
    protect = tuple(sorted(live.heads[place] for place in places(given["protect"], "protect", len(live.heads))))
    how: dict[str, Any] = {
        "seed": number(given["seed"], "seed", 0, MAX_SEED),
        "floor": number(given["floor"], "floor", 0, len(live.heads)),
        "unit": choice(given["unit"], "unit", ("kv_group", "even")),
        "protected": protect,
    }
    how |= {} if given["repair"] is None else {"repair": truth(given["repair"], "repair")}
    from headcount.models.head_map import HeadMap
    from headcount.pruning.prune import check_request
    from headcount.workflows.prune import Pruning

    spec = _spec(live, method, keep, how)
    check_request(spec, live.model(), HeadMap.of(live.model()))
    task, dense = live.task(), dense_of(live.run)
    limit = dense.n_examples if dense is not None else None
    command = f"headcount serve {live.run.folder.name}: prune by {method}, {keep} heads"
    with Run.lead(live.run.folder, command=command) as run:
        run.log(command)
        pruning = Pruning(run, live.model(), task, limit=limit, command=command, companions=live.folder)
        pruning.evaluate_dense()
        artifact, _ = pruning.make(spec)
        run.present(artifact)
        folder = pruning.model_folder(artifact.spec)
    return {"folder": str(folder), "point": point_of(live.run, artifact)}


def _spec(live: LiveRun, method: str, keep: int, how: Mapping[str, Any]) -> Any:
    """Returns the request: as a model of the run by that name was made, or by a method of the registry."""
    from headcount.core.budget import Budget
    from headcount.pruning.spec import PruneSpec

    limits = {name: how[name] for name in ("floor", "unit", "protected")}
    stages = {name: how[name] for name in ("seed", "repair") if name in how}
    for artifact in live.run.results(PRUNED).values():
        if method_label(artifact) == method:
            spec = PruneSpec.from_dict(artifact.content["spec"])
            return replace(spec, budget=Budget(keep=keep - _spared(live, spec.kinds), **limits), **stages)
    return PruneSpec.of(method, keep, **limits, **stages)


def _spared(live: LiveRun, kinds: Sequence[str]) -> int:
    """The heads of other kinds of attention: they all stay, and a request for some kinds does not count them."""
    return sum(len(block.heads) for block in live.run.heads().blocks if block.kind not in kinds) if kinds else 0


ACTIONS: dict[str, Callable[[LiveRun, Any], Mapping[str, Any]]] = {"attend": attend, "ablate": ablate, "prune": prune}

__all__ = ["ACTIONS", "LiveRun", "Unwanted"]
