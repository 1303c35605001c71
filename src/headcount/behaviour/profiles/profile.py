"""HeadProfiles of all heads of a model over a corpus, and attention maps of a few sentences, in one pass.

What is kept of the pass does not grow with the number of sentences: sums, some rows of attention chosen beforehand, and a few whole maps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import nn

from headcount.behaviour.base import LEAST, Corpus
from headcount.behaviour.catalogue import syntax
from headcount.behaviour.measure import RoleProbe, check_input, view_of
from headcount.behaviour.profiles.measure import VIEWS, Kinds, PortraitProbe, visible_blocks
from headcount.behaviour.profiles.numbers import DISTANCES, NO_WORD, STRONGEST, distances, how_many, nearest
from headcount.behaviour.profiles.sample import generator, sample_tokens, shown_sentences
from headcount.behaviour.profiles.sentence import example, side_of, token_texts
from headcount.core.errors import DataError, HeadcountError
from headcount.core.heads import AttentionBlock
from headcount.data.checks import check_weights
from headcount.data.stream import Progress, Reading, stream, world
from headcount.data.task import Task
from headcount.models.head_map import HeadMap
from headcount.models.modules import pad_id, start_id, unwrap
from headcount.models.ownership import holds

SENTENCES, SHOWN, LONGEST = 256, 8, 32
"""Sentences that are read; those kept as whole maps, and how many tokens these have at most."""
ROWS, SIMILAR, TOP, OTHERS, LEAST_WEIGHT = 128, 5, 3, 2, 1e-3
"""Query tokens kept whole at most; nearest heads, surest queries, and queries of the middle and at random that are told of each head; the
least weight of a key that is told."""


@dataclass(frozen=True, slots=True)
class HeadProfiles:
    """Plain `content`, as the report shows it, and `maps` by sentence and block: uint8, round(255·√a), [heads, q, k]; `notes` say what is missing."""

    content: Mapping[str, Any]
    maps: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What could not be made, and why."""
        return list(self.content["notes"])


class Options(TypedDict, total=False):
    """How portraits are made: the first `limit` sentences are read, `shown` of at most `longest` tokens are kept whole."""

    seed: int
    limit: int
    shown: int
    longest: int
    batch_size: int | None
    progress: Progress | None


DEFAULTS: dict[str, Any] = {"seed": 0, "limit": SENTENCES, "shown": SHOWN, "longest": LONGEST, "batch_size": None}


@holds("portraits")
def profile_heads(model: nn.Module, corpus: Corpus, tokenizer: Any = None, **options: Unpack[Options]) -> HeadProfiles:
    """What every head attends to over the first sentences or images of a corpus, and the maps of some; `tokenizer` names special tokens."""
    asked = {**DEFAULTS, **options}
    seed, longest = asked["seed"], asked["longest"]
    if world()[1] > 1:
        raise HeadcountError("portraits are made by one process; start it without torchrun")
    inner: Any = unwrap(model)
    check_input(inner, corpus)
    check_weights(inner)
    corpus = _first(corpus, asked["limit"])
    heads = HeadMap.of(inner)
    blocks, notes = visible_blocks(inner, corpus, heads.blocks)
    kinds = _kinds(corpus)
    chosen = [] if corpus.grid else shown_sentences(corpus.sentences, corpus.targets, asked["shown"], longest, seed)
    probe = PortraitProbe(inner, blocks, corpus, kinds, _rows(inner, corpus, blocks, seed), chosen)
    reading = Reading(_task(inner, heads, corpus), batch_size=asked["batch_size"], progress=asked.get("progress"))
    totals = _totals(stream(reading, probe))
    made = _Sheet(inner, heads, corpus, probe, totals, tokenizer, seed)
    notes += _notes(corpus, kinds, chosen, longest)
    content = {"n_sentences": len(corpus.sentences) or len(corpus.images), "heads": [str(head) for head in heads], **made.portraits()}
    return HeadProfiles({**content, **made.sentences(chosen), "notes": notes}, made.maps(chosen))


def attend(model: nn.Module, corpus: Corpus, tokenizer: Any = None) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """The attention maps of every sentence of a small corpus, as `HeadProfiles.maps`, and these sentences."""
    made = profile_heads(model, corpus, tokenizer, limit=len(corpus.sentences), shown=len(corpus.sentences), longest=10**6)
    return list(made.content["sentences"]), dict(made.maps)


def _first(corpus: Corpus, limit: int) -> Corpus:
    if not corpus.sentences and not len(corpus.images):
        raise DataError("there is no sentence to look at; the text is empty, or none of it could be aligned")
    images = corpus.images if len(corpus.images) <= limit else [corpus.images[i] for i in range(limit)]
    return replace(corpus, sentences=corpus.sentences[:limit], targets=corpus.targets[:limit], images=images)


def _task(model: Any, heads: HeadMap, corpus: Corpus) -> Task:
    """The corpus as data that stream through the model, just as roles read it."""
    return RoleProbe(model, heads, corpus, (), pad_id(model), start_id(model)).task()


def _kinds(corpus: Corpus) -> Kinds:
    """Parts of speech by how often they occur, and relations that occur often enough."""
    texts = (*corpus.sentences, *corpus.targets)
    tags = Counter(word.upos for s in texts for word in s.annotated.words if word.upos)
    return Kinds(tuple(sorted(tags, key=lambda tag: (-tags[tag], tag))), syntax.names(corpus))


def _rows(model: Any, corpus: Corpus, blocks: Sequence[AttentionBlock], seed: int) -> dict[str, dict[int, list[int]]]:
    """Query tokens of each side whose attention is kept whole: as many as the distances of all heads allow."""
    if corpus.grid:
        patches = corpus.grid[0] * corpus.grid[1]
        size = sum(block.n_heads for block in blocks)
        return {"source": sample_tokens([[False] + [True] * (patches - 1)] * len(corpus.images), how_many(size, patches, ROWS), seed)}
    found = {}
    for side, sentences, front in (("source", corpus.sentences, 0), ("target", corpus.targets, 1)):
        views = [view for view in VIEWS if (view == "source") == (side == "source")]
        most = max((sum(b.n_heads for b in blocks if view_of(model, b) == view) for view in views), default=0)
        if sentences and most:
            keys = max(len(s.ids) for s in (*corpus.sentences, *corpus.targets))
            ordinary = [[False] * front + [not special for special in s.special] for s in sentences]
            found[side] = sample_tokens(ordinary, how_many(most, keys, ROWS), seed)
    return found


def _totals(parts: Any) -> dict[str, np.ndarray]:
    """Sums over examples; the surest queries example by example, the few best of each head."""
    found: dict[str, np.ndarray] = {}
    first = 0
    for part in parts:
        for name, values in part.items():
            if name.endswith("/top"):
                numbered = np.concatenate(
                    [np.broadcast_to(np.arange(first, first + len(values))[:, None, None], (*values.shape[:2], 1)), values], -1
                )
                known = np.concatenate([found[name], numbered]) if name in found else numbered
                order = np.argsort(-known[:, :, 2], axis=0, kind="stable")[:TOP]
                found[name] = np.take_along_axis(known, order[:, :, None], 0)
            else:
                found[name] = found.get(name, 0) + values.sum(0)
        first += len(next(iter(part.values())))
    return found


def _notes(corpus: Corpus, kinds: Kinds, chosen: Sequence[int], longest: int) -> list[str]:
    if corpus.grid:
        return ["Images have no words: there are no distances, parts of speech, relations, examples or attention maps of them."]
    notes = []
    if not any(s.annotated.words for s in corpus.sentences):
        notes.append("The text holds tokens without words: distances count tokens.")
    if not kinds.pos:
        notes.append(
            "The text has no parts of speech, so attention by part of speech is left out; give a treebank (--text FILE.conllu) or --parser."
        )
    if not kinds.relations:
        notes.append(f"No dependency relation occurs {LEAST} times in the text, so attention by relation is left out.")
    if not chosen:
        notes.append(f"No sentence has {4 * longest} tokens or fewer, so no attention maps are shown; give shorter ones with --text.")
    return notes


@dataclass(slots=True)
class _Sheet:
    """What the pass found, put together head by head."""

    model: Any
    heads: HeadMap
    corpus: Corpus
    probe: PortraitProbe
    totals: Mapping[str, np.ndarray]
    tokenizer: Any
    seed: int

    def portraits(self) -> dict[str, Any]:
        """Everything but the maps; None for heads that were not seen."""
        kinds, n = self.probe.kinds, len(self.heads)
        found: dict[str, Any] = {"distances": list(DISTANCES)}
        table: list[np.ndarray | None] = [None] * n
        entropy: list[float | None] = [None] * n
        confidence: list[float | None] = [None] * n
        similar: list[list[Any]] = [[] for _ in range(n)]
        examples: list[dict[str, Any]] = [{"top": [], "middle": [], "random": []} for _ in range(n)]
        expected: dict[str, np.ndarray] = {}
        for view in VIEWS:
            blocks = self.probe.blocks_of(view)
            if not blocks:
                continue
            places = [place for block in blocks for place in range(*self.heads.positions(block).indices(n))]
            number = self.totals[f"{view}/number"]  # [blocks, 1 + relations]
            by_head = np.repeat(number, [block.n_heads for block in blocks], 0)
            for i, place in enumerate(places):
                if by_head[i, 0]:
                    entropy[place] = float(self.totals[f"{view}/entropy"][i] / by_head[i, 0])
                    confidence[place] = float(self.totals[f"{view}/confidence"][i] / by_head[i, 0])
                    table[place] = None if self.corpus.grid else self._shares(self.totals[f"{view}/mass"][i], by_head[i])
            if not self.corpus.grid:
                even = self._shares(self.totals[f"{view}/even"].sum(0), number.sum(0))
                expected[blocks[0].kind] = even
            self._near(view, places, similar)
            if not self.corpus.grid:
                self._tell(view, places, examples)
        found |= {"distance": [_plain(row, slice(0, len(DISTANCES)), len(DISTANCES)) for row in table]}
        found["pos"] = self._part(table, expected, kinds.pos_part, [*kinds.pos, NO_WORD]) if kinds.pos and not self.corpus.grid else None
        found["relation"] = self._part(table, expected, kinds.relation_part, list(kinds.relations)) if kinds.relations else None
        return {**found, "entropy": _numbers(entropy), "confidence": _numbers(confidence), "similar": similar, "examples": examples}

    def _shares(self, mass: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Mass over the number of queries that could have it; NaN where there was none."""
        relations = self.probe.kinds.relation_part
        below = np.full(len(mass), number[0], dtype=np.float64)
        below[relations] = number[1:]
        return np.divide(mass, below, out=np.full(len(mass), np.nan), where=below > 0)

    def _part(self, table: Sequence[Any], expected: Mapping[str, np.ndarray], part: slice, names: list[str]) -> dict[str, Any]:
        by_kind = {kind: [round(float(v), 6) if np.isfinite(v) else 0.0 for v in row[part]] for kind, row in expected.items()}
        return {"names": names, "share": [_plain(row, part, len(names)) for row in table], "expected_by_kind": by_kind}

    def _near(self, view: str, places: list[int], similar: list[list[Any]]) -> None:
        blocks, rows = self.probe.blocks_of(view), self.probe.kept_rows.get(view, {})
        whole = (torch.cat([held[block.path] for block in blocks]).numpy() for _, held in sorted(rows.items()))
        if rows and len(places) > 1:
            for place, found in nearest(distances(whole), places, SIMILAR).items():
                similar[place] = [[other, round(value, 4)] for other, value in found]

    def _tell(self, view: str, places: list[int], examples: list[dict[str, Any]]) -> None:
        """The surest queries of every head, some of its middle, and some at random."""
        random = generator(self.seed, 3)
        rows = sorted(self.probe.kept_rows.get(view, {}).items())
        for i, place in enumerate(places):
            top = [row for row in self.totals[f"{view}/top"][:, i] if row[2] > 0]
            examples[place]["top"] = [self._of_top(view, row) for row in top]
            block = self.heads.block_of(self.heads[place])
            own = block.position(self.heads[place])
            seen = [(number, token, held[block.path][own].numpy()) for (number, token), held in rows]
            weights = [self._ordinary(view, number, row).max(initial=0.0) for number, _, row in seen]
            order = sorted(range(len(seen)), key=lambda j: abs(weights[j] - float(np.median(weights)))) if seen else []
            examples[place]["middle"] = [self._of_row(view, seen[j], weights[j]) for j in sorted(order[:OTHERS])]
            drawn = random.permutation(len(seen))[:OTHERS].tolist()
            examples[place]["random"] = [self._of_row(view, seen[j], weights[j]) for j in drawn]

    def _ordinary(self, view: str, number: int, row: np.ndarray) -> np.ndarray:
        special = [True, *self.corpus.targets[number].special] if view == "target" else self.corpus.sentences[number].special
        return row[~np.asarray(special, dtype=bool)]

    def _of_top(self, view: str, row: np.ndarray) -> dict[str, Any]:
        number, query, weight = int(row[0]), int(row[1]), float(row[2])
        keys = [
            (int(k), float(w)) for k, w in zip(row[3 : 3 + STRONGEST], row[3 + STRONGEST :], strict=True) if k >= 0 and w >= LEAST_WEIGHT
        ]
        return self._example(view, number, query, keys, weight)

    def _of_row(self, view: str, seen: tuple[int, int, np.ndarray], weight: float) -> dict[str, Any]:
        number, token, row = seen
        order = np.argsort(-row, kind="stable")[:STRONGEST]
        return self._example(view, number, token, [(int(k), float(row[k])) for k in order if row[k] >= LEAST_WEIGHT], float(weight))

    def _example(self, view: str, number: int, query: int, keys: list[tuple[int, float]], weight: float) -> dict[str, Any]:
        source = token_texts(self.corpus.sentences[number], self.tokenizer)
        if view == "source":
            return example(source, query, keys, weight)
        target = token_texts(self.corpus.targets[number], self.tokenizer, start=start_id(self.model))
        return example(target, query, keys, weight) if view == "target" else example(source, query, keys, weight, target)

    def sentences(self, chosen: Sequence[int]) -> dict[str, Any]:
        """The sentences that are shown whole."""
        causal = not self.corpus.targets and any(block.kind == "decoder-self" for block in self.probe.blocks)
        found = []
        for number in chosen:
            target = side_of(self.corpus.targets[number], self.tokenizer, start=start_id(self.model)) if self.corpus.targets else None
            sentence = self.corpus.sentences[number]
            name = sentence.annotated.origin or f"sentence {number}"
            found.append({"id": name, "source": side_of(sentence, self.tokenizer), "target": target, "causal": causal})
        return {"sentences": found, "blocks": [block.path for block in self.heads.blocks]}

    def maps(self, chosen: Sequence[int]) -> dict[str, np.ndarray]:
        """The maps by sentence and block, in the order of `sentences` and of the blocks of the model."""
        place = {block.path: i for i, block in enumerate(self.heads.blocks)}
        return {
            f"{shown}/{place[path]}": np.rint(255 * np.sqrt(self.probe.kept_maps[number, path].clamp(0, 1).numpy())).astype(np.uint8)
            for shown, number in enumerate(chosen)
            for path in place
            if (number, path) in self.probe.kept_maps
        }


def _numbers(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 5) for value in values]


def _plain(row: np.ndarray | None, part: slice, size: int) -> list[float | None]:
    if row is None:
        return [None] * size
    return [round(float(value), 5) if np.isfinite(value) else None for value in row[part]]
