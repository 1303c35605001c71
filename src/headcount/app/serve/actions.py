"""Live actions: attention on a new sentence, ablation of heads, pruning. Imported when the first action runs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from headcount.app.console.words import prune_command
from headcount.app.serve.fields import read_boolean, read_choice, read_fields, read_head_indices, read_number, read_text_field
from headcount.app.serve.served_run import ServedRun
from headcount.behaviour.base import Corpus
from headcount.behaviour.corpus import read_corpus
from headcount.behaviour.profiles.profile import sentences_and_attention_maps
from headcount.core.budget import Budget
from headcount.core.errors import ArtifactError, DataError, HeadcountError, UnknownTokens
from headcount.core.evaluation import loss_and_metric_of_pruned_minus_dense
from headcount.core.heads import Head
from headcount.data.checks import n_positions
from headcount.data.evaluate import evaluate
from headcount.data.mask import mask
from headcount.data.text.annotated import join_pair
from headcount.data.text.sentences import split_words
from headcount.data.text.unknown_tokens import unknown_id
from headcount.models.head_map import HeadMap
from headcount.models.state import preserve
from headcount.pruning.prune import check_request
from headcount.pruning.spec import PruneSpec
from headcount.runs.report.attention import RunAttentionMaps
from headcount.runs.report.curves import collect_point, dense_evaluation_of
from headcount.runs.report.plain import round_or_none
from headcount.runs.results import PRUNED, method_label
from headcount.runs.store import Run
from headcount.workflows.prune import Pruning

EXAMPLES, TOKENS, NEW_TOKENS = 5000, 512, 64
"""Limits: examples of an ablation, tokens of a sentence, and tokens generated for it."""
PRUNE_DEFAULTS = {"seed": 0, "floor": 0, "unit": "kv_group"}
"""Optional fields of a request to prune."""
MAX_SEED = 2**31 - 1


class SentenceCorpus(NamedTuple):
    """The corpus of one sentence, and a note if it has unknown tokens."""

    corpus: Corpus
    unknown_tokens_note: str | None


def attend(served: ServedRun, body: Any) -> dict[str, Any]:
    """Returns the attention of all heads on a new sentence; an encoder–decoder also reads a translation, its own if none is given."""
    fields = read_fields(body, ("text", "pair"))
    first, second = read_text_field(fields["text"], "text"), read_text_field(fields["pair"], "pair", optional=True)
    model, tokenizer = served.model(), served.tokenizer()
    if tokenizer is None:
        raise ArtifactError(f"{served.record.model.name} has no tokenizer, so it reads no text")
    built = _build_sentence_corpus(served, str(first), second)
    sentences, arrays = sentences_and_attention_maps(model, built.corpus, tokenizer)
    blocks = served.run.heads().blocks
    maps = {(int(name.partition("/")[0]), int(name.partition("/")[2])): array for name, array in arrays.items()}
    return {
        "attention": RunAttentionMaps(sentences, maps, [len(block.heads) for block in blocks]).pack_sentences(),
        "note": built.unknown_tokens_note,
    }


def _build_sentence_corpus(served: ServedRun, sentence_text: str, second_text: str | None) -> SentenceCorpus:
    model, tokenizer = served.model(), served.tokenizer()
    tokenization = _read_tokenization_options(served)
    most = min(TOKENS, n_positions(model) or TOKENS)
    most = min(tokenization.get("max_length") or most, most)
    sentence = split_words(sentence_text, "the sentence")
    _check_token_count(tokenizer, [[part for _, part in sentence.texts_with_start]], tokenization, most)
    if getattr(model.config, "is_encoder_decoder", False):
        sentence = replace(
            sentence,
            target=split_words(
                second_text if second_text is not None else _translate_greedily(served, sentence_text, tokenization), "its translation"
            ),
        )
    elif second_text is not None:
        sentence = join_pair(sentence, split_words(second_text, "its second text"))
    texts = [[part for _, part in side.texts_with_start] for side in (sentence, sentence.target) if side is not None]
    _check_token_count(tokenizer, texts, tokenization, most)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownTokens)  # the note says so
        corpus = read_corpus(model, [sentence], tokenizer, **{**tokenization, "max_length": most})
        return SentenceCorpus(corpus, _describe_unknown_tokens(tokenizer, texts))


def _check_token_count(tokenizer: Any, texts: Sequence[Sequence[str]], tokenization: Mapping[str, Any], max_tokens: int) -> None:
    for parts in texts:
        ids = tokenizer(*parts, add_special_tokens=tokenization.get("add_special_tokens", True), verbose=False)["input_ids"]
        length = len(ids) + len(tokenization.get("end", ()))
        if length > max_tokens:
            raise DataError(f"the sentence has {length} tokens; at most {max_tokens} are shown here. Give a shorter one")


def _describe_unknown_tokens(tokenizer: Any, texts: Sequence[Sequence[str]]) -> str | None:
    """Returns a note about unknown tokens, None if there are none."""
    unknown = unknown_id(tokenizer)
    ids = [token for parts in texts for token in tokenizer(*parts, add_special_tokens=False, verbose=False)["input_ids"]]
    n_unknown = ids.count(unknown) if unknown is not None else 0
    return f"{n_unknown} of {len(ids)} tokens are unknown to the tokenizer: the model reads them all as the same" if n_unknown else None


def _read_tokenization_options(served: ServedRun) -> dict[str, Any]:
    """Returns how the task of the run tokenizes text; empty, the defaults of the tokenizer, if the task cannot be opened."""
    try:
        texts = served.task().texts
    except HeadcountError:
        return {}
    return {} if texts is None else {name: value for name, value in texts.alignment_arguments.items() if name != "truncate"}


def _translate_greedily(served: ServedRun, sentence_text: str, tokenization: Mapping[str, Any]) -> str:
    """Returns the greedy output of the model."""
    model, tokenizer = served.model(), served.tokenizer()
    ids = tokenizer(sentence_text, add_special_tokens=tokenization.get("add_special_tokens", True))["input_ids"] + list(
        tokenization.get("end", ())
    )
    with torch.no_grad(), preserve(model):
        generated = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1)
    translation = tokenizer.decode(generated[0], skip_special_tokens=True).strip()
    if not translation:
        raise DataError("the model generates an empty text for this sentence; give its translation as the second text")
    return translation


def ablate(served: ServedRun, body: Any) -> dict[str, Any]:
    """Returns the metric with heads gated off, compared with the dense model on the same first examples."""
    fields = read_fields(body, ("heads", "limit"))
    ablated = read_head_indices(fields["heads"], "heads", len(served.heads), fewest=1)
    limit = read_number(fields["limit"], "limit", 2, EXAMPLES)
    task = served.task()
    if limit not in served.dense_evaluations:
        served.dense_evaluations[limit] = evaluate(served.model(), task, limit=limit)
    dense = served.dense_evaluations[limit]
    with mask(served.model(), [served.heads[index] for index in ablated]):
        gated = evaluate(served.model(), task, limit=limit)
    differences = loss_and_metric_of_pruned_minus_dense(dense, gated, task.metric.total if task.metric else None, seed=served.record.seed)
    name = "metric" if "metric" in differences else "loss"
    change = differences[name]
    return {
        "metric": dense.metric if name == "metric" else "loss",
        "value": round_or_none(gated.value if name == "metric" else gated.loss),
        "dense": round_or_none(dense.value if name == "metric" else dense.loss),
        "difference": round_or_none(change.difference),
        "low": round_or_none(change.low),
        "high": round_or_none(change.high),
        "p": round_or_none(change.p, 3),
        "test": change.by,
        "n": dense.n_examples,
    }


def prune_run(served: ServedRun, body: Any) -> dict[str, Any]:
    """Prunes to so many heads by a method of the run, or of the registry, and writes the model into the run folder."""
    fields = read_fields(body, ("method", "keep", "protect", "repair"), PRUNE_DEFAULTS)
    method, keep = str(read_text_field(fields["method"], "method")), read_number(fields["keep"], "keep", 1, len(served.heads) - 1)
    limits = Budget(
        floor=read_number(fields["floor"], "floor", 0, len(served.heads)),
        unit=read_choice(fields["unit"], "unit", ("kv_group", "even")),  # pyright: ignore[reportArgumentType]
        protected=frozenset(
            Head.parse(served.heads[index]) for index in read_head_indices(fields["protect"], "protect", len(served.heads))
        ),
    )
    seed = read_number(fields["seed"], "seed", 0, MAX_SEED)
    repair = None if fields["repair"] is None else read_boolean(fields["repair"], "repair")
    spec = _build_prune_spec(served, method, keep, limits, seed=seed, repair=repair)
    check_request(spec, served.model(), HeadMap.of(served.model()))
    task, dense = served.task(), dense_evaluation_of(served.run)
    limit = dense.n_examples if dense is not None else None
    command = f"headcount serve {served.run.folder.name}: prune by {method}, {keep} heads"
    with Run.lead(served.run.folder, command=command) as run:
        run.log(command)
        pruning = Pruning(run, served.model(), task, limit=limit, command=command, companions=served.folder, seed=served.record.seed)
        pruning.evaluate_dense()
        artifact, _ = pruning.load_or_make_model(spec)
        run.register_results(artifact)
        folder = pruning.model_folder(artifact.key)
    return {"folder": str(folder), "point": collect_point(served.run, artifact, prune_command)}


def _build_prune_spec(served: ServedRun, method_or_label: str, n_kept: int, limits: Budget, *, seed: int, repair: bool | None) -> PruneSpec:
    """Returns the request for `n_kept` heads: by the method of a model of the run that has this label, or by a registered method."""
    for artifact in served.run.results(PRUNED).values():
        if method_label(artifact) == method_or_label:
            spec = PruneSpec.from_dict(artifact.content["spec"])
            # A request for some kinds of attention counts their heads alone; the heads of the other kinds all stay.
            others = (block for block in served.run.heads().blocks if spec.kinds and block.kind not in spec.kinds)
            budget = limits.resized(n_kept - sum(len(block.heads) for block in others))
            return replace(spec, budget=budget, seed=seed, repair=spec.repair if repair is None else repair)
    return PruneSpec.of(method_or_label, limits.resized(n_kept), seed=seed, repair=repair)
