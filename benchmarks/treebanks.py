"""What heads do on gold trees: relations, layers and several roles at once, in English, German and the two embedded languages.

    python benchmarks/treebanks.py --data DATA --model all-mpnet-base-v2 --translator MULTI30K --out RUN [--sentences 400]

The model is an English encoder, MULTI30K the English–German one that benchmarks/translation.py trains (in RUN/dense). Every reading is a
model with a treebank. The head shown for a relation is the most accurate one on other sentences than those that it is shown on. Everything
is kept in RUN and goes on after a stop; tables go to docs/real-models.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from peers.sidebyside import put, table
from scipy.stats import hypergeom
from transformers import AutoTokenizer

import headcount as hc
from headcount.behaviour.corpus import read_corpus
from headcount.core.role_table import RoleScore, RoleTable
from headcount.data.embedded.sentences import draw_sentences
from headcount.data.readers.conllu import read_conllu
from headcount.data.text.annotated import Annotated
from headcount.data.text.parallel import translations
from headcount.models.provenance import machine_of, model_record
from headcount.runs.describe import describe_run
from headcount.runs.store import Run
from headcount.surgery.source import local_folder
from headcount.workflows.roles import roles_into

DOCUMENT = Path(__file__).parents[1] / "docs" / "real-models.md"
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "local": ("local", "offset"),
    "syntactic": ("syntax",),
    "delimiter": ("delimiter", "sink"),
    "part of speech": ("pos",),
    "same, rare or punctuation": ("same", "rare", "punctuation"),
}
PANDE = ("local", "syntactic", "delimiter")
"""The kinds that Pande et al. 2021 count in single texts; their fourth is about pairs."""
VOITA = {"nsubj": "45/35, 52/35", "obj": "78/41, 73/41", "amod": "74/72, 82/72", "advmod": "48/46, 52/46"}
"""Accuracy of the best head and of the baseline in the two directions, encoder of a translation model (WMT)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A model that reads sentences: roles shown on some, heads chosen on others; `stack` is the part of an encoder–decoder."""

    name: str
    shown: RoleTable
    chosen: RoleTable
    stack: str = ""

    def heads(self) -> list[hc.Head]:
        return [head for head in self.shown.heads if head.stack == self.stack]

    def rows(self, role: str) -> dict[hc.Head, RoleScore]:
        return {row.head: row for row in self.shown if row.role == role and row.head.stack == self.stack}

    def best(self, role: str) -> RoleScore | None:
        """The row of the head that is most accurate on the other sentences."""
        rows = self.rows(role)
        tried = [row for row in self.chosen if row.role == role and row.head in rows]
        return rows[max(tried, key=lambda row: (row.accuracy, row.bias)).head] if tried else None

    def having(self, family: str) -> set[hc.Head]:
        """The heads that have any role of a family."""
        return {row.head for row in self.shown if row.has_role and row.head.stack == self.stack and is_of(row.role, family)}

    def several(self) -> set[hc.Head]:
        """The heads that are of two or more of the kinds of Pande et al."""
        found = [self.having(family) for family in PANDE]
        return {head for head in self.heads() if sum(head in one for one in found) > 1}


def is_of(role: str, family: str) -> bool:
    return role.partition(":")[0] in FAMILIES[family]


class Readings:
    """Measures one model on sentences, into a run for each set of them."""

    def __init__(self, out: Path, name: str, folder: Path | str, auto: str | None = None) -> None:
        self.out, self.name = out, name
        self.model: Any = hc.load(folder, auto=auto)
        self.tokenizer = AutoTokenizer.from_pretrained(local_folder(folder))

    def read(self, text: str, sentences: Sequence[Annotated], number: int, stacks: Mapping[str, str]) -> list[Reading]:
        """The first so many sentences shown, the next as many to choose heads on; one reading for each stack and its name."""
        shown = self._roles(f"{self.name}-{text}-shown", sentences[:number])
        chosen = self._roles(f"{self.name}-{text}-chosen", sentences[number : 2 * number])
        return [Reading(name, shown, chosen, stack) for stack, name in stacks.items()]

    def _roles(self, name: str, sentences: Sequence[Annotated]) -> RoleTable:
        command = "python benchmarks/treebanks.py"
        corpus = read_corpus(self.model, sentences, self.tokenizer)
        print(f"{name}: {len(corpus.sentences)} sentences", flush=True)
        with Run.lead(self.out / name, command=command) as run:
            record = describe_run(model_record(self.model, self.name), command=command, seed=0, task=name, machine=machine_of(self.model))
            run.describe(record, hc.HeadMap.of(self.model))
            return roles_into(run, self.model, corpus)

    def fits(self, sentence: Annotated) -> bool:
        """Whether the model has positions for all tokens of a sentence and of its translation."""
        texts = [sentence.text, *([sentence.target.text] if sentence.target else [])]
        return all(len(self.tokenizer(text)["input_ids"]) < self.model.config.max_position_embeddings for text in texts)


def treebank(data: Path, name: str, part: str) -> list[Annotated]:
    return list(read_conllu(data / "ud" / name / f"{name}-ud-{part}.conllu"))


def english_model(options: argparse.Namespace) -> list[Reading]:
    """An English encoder on English, and on the same sentences in German, of which it knows nothing."""
    made = Readings(options.out, options.model.name, options.model, "AutoModel")
    found = []
    for title, name, part in (("EWT, English", "en_ewt", "dev"), ("PUD, English", "en_pud", "test"), ("PUD, German", "de_pud", "test")):
        found += made.read(name, treebank(options.data, name, part), options.sentences, {"": title})
    return found


def translator(options: argparse.Namespace) -> list[Reading]:
    """A translation model on PUD: its encoder reads English, its decoder the German translation."""
    made = Readings(options.out, "multi30k", options.translator)
    pairs = translations(treebank(options.data, "en_pud", "test"), treebank(options.data, "de_pud", "test"))
    sentences = list(islice(filter(made.fits, pairs), 2 * options.sentences))
    return made.read("pud", sentences, options.sentences, {"enc": "encoder, English", "dec": "decoder, German"})


def two_languages(options: argparse.Namespace) -> list[Reading]:
    """The embedded encoder of two languages."""
    made = Readings(options.out, "demo-encoder", "demo/encoder")
    found = []
    for language in ("english", "tavi"):
        sentences = draw_sentences(language, 2 * options.sentences)
        found += made.read(language, sentences, options.sentences, {"": language.capitalize()})
    return found


def relations(readings: Sequence[Reading], number: int) -> list[str]:
    """The relations that most tokens of the first reading show."""
    found = {row.role: row.n_tokens for row in readings[0].shown if is_of(row.role, "syntactic") and not row.role.endswith("-of")}
    wanted = sorted(found, key=lambda role: -found[role])[:number]
    return list(dict.fromkeys([*(f"syntax:{name}" for name in VOITA if f"syntax:{name}" in found), *wanted]))


def best_heads(readings: Sequence[Reading], number: int, published: Mapping[str, str]) -> str:
    """The most accurate head for each relation and direction, beside the best fixed offset, and beside published figures."""
    rows = []
    for role in relations(readings, number):
        for name in (role, f"{role}-of"):
            known = [published.get(name.removeprefix("syntax:"), "")] if published else []
            rows.append([f"`{name}`", *(entry(reading.best(name)) for reading in readings), *known])
    header = ["relation", *(reading.name for reading in readings), *(["Voita et al., both directions"] if published else [])]
    return table(header, rows, left=len(header))


def entry(row: RoleScore | None) -> str:
    if row is None:
        return "untested"
    accuracy = f"{row.accuracy:.2f} ({row.accuracy_low:.2f} … {row.accuracy_high:.2f})"
    return f"{row.head} {f'**{accuracy}**' if row.by_argmax else accuracy} / {row.baseline:.2f} at {row.baseline_offset:+d}, q {row.q:.1g}"


def by_layer(readings: Sequence[Reading]) -> str:
    """How many heads of each layer have a role of each family, and how many are of two kinds or more."""
    layers = sorted({head.layer for reading in readings for head in reading.heads()})
    rows = []
    for reading in readings:
        kinds: dict[str, set[hc.Head]] = {name: reading.having(name) for name in FAMILIES}
        kinds["**two or more of the first three**"] = reading.several()
        for name, heads in kinds.items():
            rows.append([reading.name, name, *(sum(head.layer == layer for head in heads) for layer in layers), len(heads)])
    size = sum(head.layer == layers[0] for head in readings[0].heads())
    return table(("reading", "kind", *(f"L{layer}" for layer in layers), f"all ({size} a layer)"), rows, left=2)


def middle(reading: Reading) -> list[Any]:
    """The share of heads of two kinds or more in each third of the layers, and how often chance puts as many into the middle one."""
    heads, several = reading.heads(), reading.several()
    layers = sorted({head.layer for head in heads})
    third = len(layers) // 3
    parts = (layers[:third], layers[third : len(layers) - third], layers[len(layers) - third :])
    here = [[head for head in heads if head.layer in part] for part in parts]
    counts = [len(several.intersection(part)) for part in here]
    p = hypergeom.sf(counts[1] - 1, len(heads), len(several), len(here[1]))
    shares = [f"{count} of {len(part)}" for count, part in zip(counts, here, strict=True)]
    local, syntactic, delimiter = (reading.having(family) for family in PANDE)
    return [
        reading.name,
        *shares,
        f"{p:.2g}",
        share(local & syntactic, heads),
        share(syntactic & local, syntactic),
        share(delimiter, heads),
    ]


def share(some: Sequence[Any] | set[Any], of: Sequence[Any] | set[Any]) -> str:
    return f"{100 * len(some) / len(of):.0f} %" if of else "none"


def kinds(readings: Sequence[Reading]) -> str:
    header = ("reading", "bottom third", "middle", "top", "p (middle)", "local and syntactic", "syntactic that are local", "delimiter")
    return table(header, [middle(reading) for reading in readings])


def main() -> None:
    groups: dict[str, Callable[[argparse.Namespace], list[Reading]]] = {
        "model": english_model,
        "translator": translator,
        "embedded": two_languages,
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--translator", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=groups, nargs="+", default=list(groups))
    parser.add_argument("--sentences", type=int, default=400, help="shown of each treebank, and as many to choose heads on")
    parser.add_argument("--relations", type=int, default=8, help="the most frequent ones, beside those of Voita et al.")
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only:
        readings = groups[name](options)
        tables = [best_heads(readings, options.relations, {} if name == "embedded" else VOITA), by_layer(readings), kinds(readings)]
        for kind, text in zip(("relations", "layers", "kinds"), tables, strict=True):
            put(options.document, f"treebanks-{name}-{kind}", text)
            print(f"\n{text}\n", flush=True)


if __name__ == "__main__":
    main()
