"""Live actions: attention on a new sentence, ablation of heads, pruning. Model and task are opened as the run records them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headcount.app.serve.fields import read_choice, read_fields, read_flag, read_heads, read_number, read_text
from headcount.core.errors import ArtifactError, DataError, HeadcountError, UnknownTokens
from headcount.core.evaluation import compare_with
from headcount.core.files import reopened_model
from headcount.data.open_task import default_task, open_task
from headcount.data.task_builder import TaskBuilder
from headcount.data.text.annotated import pair
from headcount.data.text.sentences import split_words
from headcount.models.provenance import weight_hash
from headcount.runs.report.attention import Maps
from headcount.runs.report.curves import dense_of, point_of
from headcount.runs.report.plain import short
from headcount.runs.results import PRUNED, method_label
from headcount.runs.store import Run

EXAMPLES, TOKENS, NEW_TOKENS = 5000, 512, 64
"""Limits: examples of an ablation, tokens of a sentence, and tokens generated for it."""
PRUNE_DEFAULTS = {"seed": 0, "floor": 0, "unit": "kv_group"}
"""Optional fields of a request to prune."""
MAX_SEED = 2**31 - 1


class LiveRun:
    """A run with its model and task, opened when they are first needed."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.record = run.record()
        self.heads = [head for block in run.heads().blocks for head in block.heads]
        self.opened: Mapping[str, Any] | None = self.record.config.get("opened")
        self.folder, self.why_not = _find_folder(reopened_model(self.record.model.name, self.record.config))
        self._model: Any = None
        self._task: Any = None
        self._tokenizer: Any = None
        self._dense: dict[int, Any] = {}
        self._lock = threading.RLock()

    def model(self) -> Any:
        """Returns the model of the run; raises ArtifactError if its weights are not those of the run."""
        with self._lock:
            if self._model is None:
                self._model = self._open_model()
            return self._model

    def _open_model(self) -> Any:
        from transformers.utils import logging

        from headcount.surgery.load import load

        logging.disable_progress_bar()
        if self.folder is None:
            raise ArtifactError(self.why_not)
        opened = self.opened or {}
        model = load(self.folder, auto=opened.get("auto"), dtype=opened.get("dtype", "auto")).eval()
        if weight_hash(model) != self.record.model.weights:
            raise ArtifactError(
                f"the model {self.record.model.name} has other weights than when this run was computed; restore them, or run the command again"
            )
        return model

    def tokenizer(self) -> Any:
        """Returns the tokenizer or processor of the model, None if its folder has none."""
        from headcount.data.readers.processor import reader_of

        with self._lock:
            if self._tokenizer is None and self.folder is not None:
                self._tokenizer = reader_of(self.model(), self.folder)
            return self._tokenizer

    def task(self) -> Any:
        """Returns the task of the run; raises DataError if the run does not record how to open it."""
        with self._lock:
            if self._task is None:
                self._task = self._open_task()
            return self._task

    def _open_task(self) -> Any:
        opened = self.opened
        if opened is None or opened.get("own_task"):
            raise DataError(
                "run.json does not record how to open the task, because the task was made in Python; run a headcount command with --task"
            )
        names = ("train", "eval", "max_length", "truncate", "limit", "seed", *(name for name in opened if name.endswith("_column")))
        arguments = {name: opened[name] for name in names if name in opened}
        task = opened.get("task") or self.record.task or default_task(self.model())
        builder = TaskBuilder.parse(task).with_texts(dict(pair.split("=", 1) for pair in opened.get("task_option", ())))
        return open_task(builder, self.model(), self.tokenizer(), **arguments)

    def evaluate_dense(self, limit: int) -> Any:
        """Returns the evaluation of the dense model on the first `limit` examples of the report split."""
        from headcount.data.evaluate import evaluate

        if limit not in self._dense:
            self._dense[limit] = evaluate(self.model(), self.task(), limit=limit)
        return self._dense[limit]


def _find_folder(name: str) -> tuple[Path | None, str]:
    """Returns the folder of a model on this machine, or None and the reason; nothing is downloaded."""
    from headcount.surgery.source import local_folder

    try:
        return local_folder(name, local_files_only=True), ""
    except HeadcountError:
        return None, f"the model {name} is not on this machine, and nothing is fetched here"


def attend(live: LiveRun, request: Any) -> dict[str, Any]:
    """Returns the attention of all heads on a new sentence; an encoder–decoder also reads a translation, its own if none is given."""
    fields = read_fields(request, ("text", "pair"))
    first, second = read_text(fields["text"], "text"), read_text(fields["pair"], "pair", optional=True)
    from headcount.behaviour.profiles.profile import map_attention

    model, tokenizer = live.model(), live.tokenizer()
    if tokenizer is None:
        raise ArtifactError(f"{live.record.model.name} has no tokenizer, so it reads no text")
    corpus, note = _corpus(live, str(first), second)
    sentences, arrays = map_attention(model, corpus, tokenizer)
    blocks = live.run.heads().blocks
    maps = {(int(name.partition("/")[0]), int(name.partition("/")[2])): array for name, array in arrays.items()}
    return {"attention": Maps(sentences, maps, [len(block.heads) for block in blocks]).pack_sentences(), "note": note}


def _corpus(live: LiveRun, first: str, second: str | None) -> tuple[Any, str | None]:
    """Returns the corpus of the sentence, and a note if it has unknown tokens."""
    from headcount.behaviour.corpus import read_corpus
    from headcount.data.checks import n_positions

    model, tokenizer = live.model(), live.tokenizer()
    alignment = _alignment(live)
    most = min(TOKENS, n_positions(model) or TOKENS)
    most = min(alignment.get("max_length") or most, most)
    sentence = split_words(first, "the sentence")
    _check_length(tokenizer, [[part for _, part in sentence.parts]], alignment, most)
    if getattr(model.config, "is_encoder_decoder", False):
        sentence = replace(
            sentence, target=split_words(second if second is not None else _translate(live, first, alignment), "its translation")
        )
    elif second is not None:
        sentence = pair(sentence, split_words(second, "its second text"))
    texts = [[part for _, part in side.parts] for side in (sentence, sentence.target) if side is not None]
    _check_length(tokenizer, texts, alignment, most)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownTokens)  # the note says so
        return read_corpus(model, [sentence], tokenizer, **{**alignment, "max_length": most}), _unknown_note(tokenizer, texts)


def _check_length(tokenizer: Any, texts: Sequence[Sequence[str]], alignment: Mapping[str, Any], most: int) -> None:
    for parts in texts:
        ids = tokenizer(*parts, add_special_tokens=alignment.get("add_special_tokens", True), verbose=False)["input_ids"]
        length = len(ids) + len(alignment.get("end", ()))
        if length > most:
            raise DataError(f"the sentence has {length} tokens; at most {most} are shown here. Give a shorter one")


def _unknown_note(tokenizer: Any, texts: Sequence[Sequence[str]]) -> str | None:
    """Returns a note about unknown tokens, None if there are none."""
    from headcount.data.text.unknown_tokens import unknown_id

    unknown = unknown_id(tokenizer)
    ids = [token for parts in texts for token in tokenizer(*parts, add_special_tokens=False, verbose=False)["input_ids"]]
    n_unknown = ids.count(unknown) if unknown is not None else 0
    return f"{n_unknown} of {len(ids)} tokens are unknown to the tokenizer: the model reads them all as the same" if n_unknown else None


def _alignment(live: LiveRun) -> dict[str, Any]:
    """Returns how the task of the run tokenizes text; empty, the defaults of the tokenizer, if the task cannot be opened."""
    try:
        texts = live.task().texts
    except HeadcountError:
        return {}
    return {} if texts is None else {name: value for name, value in texts.alignment.items() if name != "truncate"}


def _translate(live: LiveRun, first: str, alignment: Mapping[str, Any]) -> str:
    """Returns the greedy output of the model."""
    import torch

    from headcount.models.state import preserve

    model, tokenizer = live.model(), live.tokenizer()
    ids = tokenizer(first, add_special_tokens=alignment.get("add_special_tokens", True))["input_ids"] + list(alignment.get("end", ()))
    with torch.no_grad(), preserve(model):
        generated = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1)
    translation = tokenizer.decode(generated[0], skip_special_tokens=True).strip()
    if not translation:
        raise DataError("the model generates an empty text for this sentence; give its translation as the second text")
    return translation


def ablate(live: LiveRun, request: Any) -> dict[str, Any]:
    """Returns the metric with heads gated off, compared with the dense model on the same first examples."""
    fields = read_fields(request, ("heads", "limit"))
    ablated = read_heads(fields["heads"], "heads", len(live.heads), minimum=1)
    limit = read_number(fields["limit"], "limit", 2, EXAMPLES)
    from headcount.data.evaluate import evaluate
    from headcount.data.mask import mask

    task, dense = live.task(), live.evaluate_dense(limit)
    with mask(live.model(), [live.heads[index] for index in ablated]):
        gated = evaluate(live.model(), task, limit=limit)
    differences = compare_with(dense, gated, task.metric.total if task.metric else None)
    name = "metric" if "metric" in differences else "loss"
    change = differences[name]
    return {
        "metric": dense.metric if name == "metric" else "loss",
        "value": short(gated.value if name == "metric" else gated.loss),
        "dense": short(dense.value if name == "metric" else dense.loss),
        "difference": short(change.difference),
        "low": short(change.low),
        "high": short(change.high),
        "p": short(change.p, 3),
        "test": change.by,
        "n": dense.n_examples,
    }


def prune(live: LiveRun, request: Any) -> dict[str, Any]:
    """Prunes to so many heads by a method of the run, or of the registry, and writes the model into the run folder."""
    fields = read_fields(request, ("method", "keep", "protect", "repair"), PRUNE_DEFAULTS)
    method, keep = str(read_text(fields["method"], "method")), read_number(fields["keep"], "keep", 1, len(live.heads) - 1)
    protect = tuple(sorted(live.heads[index] for index in read_heads(fields["protect"], "protect", len(live.heads))))
    choices: dict[str, Any] = {
        "seed": read_number(fields["seed"], "seed", 0, MAX_SEED),
        "floor": read_number(fields["floor"], "floor", 0, len(live.heads)),
        "unit": read_choice(fields["unit"], "unit", ("kv_group", "even")),
        "protected": protect,
    }
    choices |= {} if fields["repair"] is None else {"repair": read_flag(fields["repair"], "repair")}
    from headcount.models.head_map import HeadMap
    from headcount.pruning.prune import check_request
    from headcount.workflows.prune import Pruning

    spec = _spec(live, method, keep, choices)
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
        folder = pruning.model_folder(artifact.key)
    return {"folder": str(folder), "point": point_of(live.run, artifact)}


def _spec(live: LiveRun, method: str, keep: int, choices: Mapping[str, Any]) -> Any:
    """Returns the request: that of a model of the run with this label, or of a registered method."""
    from headcount.core.budget import Budget
    from headcount.pruning.spec import PruneSpec

    limits = {name: choices[name] for name in ("floor", "unit", "protected")}
    stages = {name: choices[name] for name in ("seed", "repair") if name in choices}
    for artifact in live.run.results(PRUNED).values():
        if method_label(artifact) == method:
            spec = PruneSpec.from_dict(artifact.content["spec"])
            return replace(spec, budget=Budget(keep=keep - _heads_of_other_kinds(live, spec.kinds), **limits), **stages)
    return PruneSpec.of(method, keep, **limits, **stages)


def _heads_of_other_kinds(live: LiveRun, kinds: Sequence[str]) -> int:
    """Returns the number of heads of other kinds of attention, which all stay and are not counted by a request for some kinds."""
    return sum(len(block.heads) for block in live.run.heads().blocks if block.kind not in kinds) if kinds else 0


ACTIONS: dict[str, Callable[[LiveRun, Any], Mapping[str, Any]]] = {"attend": attend, "ablate": ablate, "prune": prune}
