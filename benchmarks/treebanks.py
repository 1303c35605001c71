"""Roles on English, German and Hindi treebanks by each definition, and what remains of the findings of 2019 and 2021 beyond distance.

    python benchmarks/treebanks.py --data DATA --models MODELS --out RUN     goes on after a stop
    python benchmarks/treebanks.py --page                                    only writes docs/roles-on-treebanks.md anew

Each treebank and model is one `headcount roles MODEL --text TREEBANK`, in a run folder in RUN; what the page needs of it is in treebanks.json. DATA
and MODELS are described in docs/benchmarks.md. The part on SmolLM2 is made of language.json, which `language.py` writes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from peers.sidebyside import table
from scipy.stats import hypergeom
from verdicts import FAILS, HOLDS, OPEN, PARTLY, Verdict

from headcount.core.definition import Definition
from headcount.core.files import write_json
from headcount.core.role_table import RoleScore, RoleTable
from headcount.runs.store import Run
from headcount.workflows.roles import read_roles

ROOT = Path(__file__).resolve().parents[1]
RESULTS, DOCUMENT = Path(__file__).with_suffix(".json"), ROOT / "docs" / "roles-on-treebanks.md"
LANGUAGE = Path(__file__).with_name("language.json")
MODELS: dict[str, tuple[str, ...]] = {"all-MiniLM-L6-v2": (), "all-mpnet-base-v2": ("--auto", "AutoModel")}
"""The models, and the options with which they are loaded: MPNet's configuration names a masked language model, but its file has no head for one."""
TREEBANKS = {"English": ("en_ewt", "dev"), "German": ("de_gsd", "dev"), "Hindi": ("hi_pud", "test")}
ESTIMATED_ALONE = {"English": ("syntax", "punctuation")}
"""The roles of which the share of false labels is also estimated for themselves, by treebank."""
BEYOND, CORRECTED, PUBLISHED, STRONGEST = "beyond-distance", "pande2021(correct=bh)", "pande2021(tau=3;correct=none)", "voita2019"
DEFINITIONS = (BEYOND, CORRECTED, PUBLISHED, STRONGEST)
VOITA_RELATIONS = ("nsubj", "obj", "amod", "advmod")
"""The relations that Voita et al. 2019 tested; each is a role in two directions."""
PANDE_SHARE = 0.42
"""The smallest share of heads of BERT that Pande et al. 2021 found both local and syntactic."""
SIGNIFICANT = 0.05
Record = Mapping[str, Any]
HEADER = """# Roles on treebanks

What heads do on gold trees, by the default definition of headcount and by those of the papers, from the same measurements:
`headcount roles MODEL --text TREEBANK --limit {limit}`, the first {limit} sentences of each treebank (English EWT, German GSD, Hindi PUD).
Both models were trained on English. In German and Hindi they show what is left of a role without the language.

- **beyond distance** (`beyond-distance`, the default): for roles of content an excess mass above 0.05 over the head's distance twin,
  Benjamini–Hochberg over heads × roles; for roles of position a bias above 3, corrected.
- **bias, corrected** (`pande2021(correct=bh)`): a sieve bias above 3, with Benjamini–Hochberg and a test that allows for skewness.
- **bias, published** (`pande2021(tau=3;correct=none)`): the t-test of Pande et al. 2021 without correction.
- **strongest key** (`voita2019`): an accuracy of 10 points above the best offset and above chance, 90 % for an offset; no test.

[Roles](roles.md#beyond-distance) explains the distance twin. *Beyond distance* is not *syntax*: a head that attends to verbs exceeds its twin
on `nsubj` too.

Written by `benchmarks/treebanks.py` from what the command measured; do not edit.
"""
SHOWN = ("beyond distance", "bias, corrected", "bias, published", "strongest key")


def measure(data: Path, models: Path, out: Path, limit: int) -> None:
    """Runs the command on every treebank with every model, and writes what the page needs."""
    records = []
    for model, load_options in MODELS.items():
        for language, (name, split) in TREEBANKS.items():
            folder, text = out / f"{model}-{name}", data / "ud" / name / f"{name}-ud-{split}.conllu"
            words = [models / model, *load_options, "--text", text, "--limit", limit]
            alone = {
                only: _swapped_labels(run_roles([*words, "--only", only], folder.with_name(f"{folder.name}-{only}")))
                for only in ESTIMATED_ALONE.get(language, ())
            }
            summary = summarise(run_roles(words, folder))
            records.append({"model": model, "language": language, "treebank": name, **summary, "swapped_alone": alone})
    write_json(RESULTS, {"limit": limit, "tables": records})


def run_roles(words: Sequence[object], folder: Path) -> RoleTable:
    """Returns the roles that the command measures; those of an earlier run are read."""
    command = ["headcount", "roles", *map(str, words), "--out", str(folder)]
    print(*command, flush=True)
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
    return read_roles(Run.open(folder))


def _swapped_labels(roles: RoleTable) -> dict[str, Any] | None:
    """Returns the labels under swapped annotations with their share, as plain data."""
    return None if roles.swapped is None else {**asdict(roles.swapped), "ratio": roles.swapped.ratio}


def summarise(roles: RoleTable) -> dict[str, Any]:
    """Returns what the page says of a table, as plain data."""
    rows_by_definition = {name: roles.relabel(name).rows for name in DEFINITIONS}
    content = [row for row in rows_by_definition[BEYOND] if row.is_content]
    families = dict.fromkeys(_family(row.role) for row in sorted(roles, key=lambda row: not row.is_content))
    return {
        "n_sentences": roles.conditions["n_examples"],
        "n_heads": len(roles.heads),
        "swapped": _swapped_labels(roles),
        "content": _count_labels(rows_by_definition, {row.role for row in content}),
        "families": {
            name: _count_labels(rows_by_definition, {row.role for row in roles if _family(row.role) == name}) for name in families
        },
        "disagreements": _count_disagreements(rows_by_definition),
        "explained": {name: _explained_by_distance([row for row in rows if row.is_content]) for name, rows in rows_by_definition.items()},
        "relations": {role: _summarise_role(rows_by_definition, role) for role in roles.roles() if _family(role) in ("syntax", "rare")},
        "positional": _positional_heads(rows_by_definition[STRONGEST]),
        "several": {name: _heads_of_several_kinds(roles, name) for name in DEFINITIONS},
    }


def _family(role: str) -> str:
    return role.partition(":")[0]


def _count_labels(rows_by_definition: Mapping[str, Sequence[RoleScore]], roles: set[str]) -> dict[str, Any]:
    """Returns how many tests of some roles there are, how many cannot be made against the twin, and labels and heads by each definition."""
    tests = [row for row in rows_by_definition[BEYOND] if row.role in roles]
    labels = {name: [row.head for row in rows if row.role in roles and row.has_role] for name, rows in rows_by_definition.items()}
    return {
        "tests": len(tests),
        "not testable": sum(bool(row.is_content and row.note) for row in tests),
        "labels": {name: len(heads) for name, heads in labels.items()},
        "heads": {name: len(set(heads)) for name, heads in labels.items()},
    }


def _count_disagreements(rows_by_definition: Mapping[str, Sequence[RoleScore]]) -> dict[str, dict[str, dict[str, int]]]:
    """Returns how many labels of all roles of content, and of syntax alone, each definition shares with that beyond distance, and does not."""
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for part in ("content", "syntax"):
        labels = {
            name: {(row.head, row.role) for row in rows if row.has_role and row.is_content and part in ("content", _family(row.role))}
            for name, rows in rows_by_definition.items()
        }
        beyond = labels.pop(BEYOND)
        counts[part] = {
            name: {"both": len(own & beyond), "only beyond distance": len(beyond - own), "only by this": len(own - beyond)}
            for name, own in labels.items()
        }
    return counts


def _explained_by_distance(rows: Iterable[RoleScore]) -> dict[str, Any]:
    """Returns the quartiles of the share of the labels' bias that distance explains."""
    shares = [row.explained_by_distance for row in rows if row.has_role]
    values = np.array([share for share in shares if share is not None])
    return {"labels": len(values), "quartiles": np.quantile(values, (0.25, 0.5, 0.75)).tolist() if len(values) else None}


def _summarise_role(rows_by_definition: Mapping[str, Sequence[RoleScore]], role: str) -> dict[str, Any]:
    """Returns the labels of a role by each definition, and the head with the largest excess mass."""
    own = {name: [row for row in rows if row.role == role] for name, rows in rows_by_definition.items()}
    compared = [row for row in own[BEYOND] if row.excess is not None]
    strongest = max(compared, key=lambda row: row.excess or 0.0, default=None)
    names = ("excess", "excess_low", "excess_high", "q")
    return {
        "labels": {name: sum(row.has_role for row in rows) for name, rows in own.items()},
        "layers beyond distance": sorted(row.head.layer for row in own[BEYOND] if row.has_role),
        "strongest": None if strongest is None else {"head": str(strongest.head), **{name: getattr(strongest, name) for name in names}},
    }


def _positional_heads(rows: Iterable[RoleScore]) -> list[dict[str, Any]]:
    """Returns the heads whose strongest key is at a neighbouring position so often that the interval of the accuracy lies above the threshold."""
    threshold = Definition.parse(STRONGEST).accuracy_threshold
    return [
        {"head": str(row.head), "role": row.role, "accuracy": row.accuracy}
        for row in rows
        if row.role in ("offset:-1", "offset:+1") and row.has_role and row.accuracy_low >= (threshold(row) or 0.0)
    ]


def _heads_of_several_kinds(roles: RoleTable, definition: str) -> dict[str, Any]:
    """Returns the heads that are syntactic, local and both, and the chance that as many of these are in the middle third of the layers."""
    labels = roles.relabel(definition).labels()
    families = {head: set(Definition.parse(CORRECTED).families_of(names)) for head, names in labels.items()}
    both = [head for head, names in families.items() if {"local", "syntactic"} <= names]
    n_layers = len({head.layer for head in roles.heads})
    middle = [head for head in roles.heads if n_layers <= 3 * head.layer < 2 * n_layers]
    in_middle = len(set(both) & set(middle))
    return {
        "local": sum("local" in names for names in families.values()),
        "syntactic": sum("syntactic" in names for names in families.values()),
        "both": len(both),
        "both in the middle": in_middle,
        "p": float(hypergeom.sf(in_middle - 1, len(roles.heads), len(middle), len(both))),
    }


def _name(record: Record) -> str:
    return f"{record['model']}, {record['language']}"


def _labels_and_heads(counts: Record) -> list[str]:
    return [f"{counts['labels'][name]} ({counts['heads'][name]})" for name in DEFINITIONS]


def write_overview(records: Sequence[Record]) -> list[str]:
    """Returns the lines of the table of all labels of content."""
    rows = []
    for record in records:
        content, swaps = record["content"], [record["swapped"], *(record["swapped_alone"].get(name) for name in ("syntax", "punctuation"))]
        cells = [_format_swapped_labels(swapped) for swapped in swaps]
        rows.append([_name(record), record["n_sentences"], content["tests"], content["not testable"], *_labels_and_heads(content), *cells])
    estimates = ("under swaps / labels", "syntax alone", "punctuation alone")
    header = ("model, treebank", "sentences", "heads × roles", "not testable", *SHOWN, *estimates)
    return [
        "## Labels of content",
        "",
        "Labels of all roles of content, in brackets the heads that have any of them. The last columns estimate the share of false labels beyond "
        "distance: labels under annotations of other sentences of equal length (mean of 20 swaps) / labels, on the sentences that have a partner; "
        "with fewer than 20 labels no share is given. Sentences end in a full stop, so those of equal length have it in common: a head that attends "
        "to the end of the sentence earns `punctuation` from any of them. *Alone*: the same estimate with these roles as the only ones tested.",
        "",
        table(header, rows),
        "",
    ]


def _format_swapped_labels(swapped: Record | None) -> str:
    """Returns labels under swaps / labels, and their ratio if there are enough."""
    if swapped is None:
        return "–"
    ratio = "–" if swapped["ratio"] is None else f"{swapped['ratio']:.1%}"
    return f"{swapped['swapped_labels']:.1f} / {swapped['labels']} = {ratio}"


def write_families(records: Sequence[Record]) -> list[str]:
    """Returns the lines of the tables of labels by family, and of where the definitions disagree."""
    lines = ["## Labels by family", "", "Labels, in brackets heads with any of them. Roles of position are not tested against a twin.", ""]
    for record in records:
        rows = [
            [f"`{name}`", counts["tests"], counts["not testable"], *_labels_and_heads(counts)]
            for name, counts in record["families"].items()
        ]
        lines += [f"### {_name(record)}: {record['n_heads']} heads", "", table(("roles", "tests", "not testable", *SHOWN), rows), ""]
    rows = []
    for record in records:
        for part in ("content", "syntax"):
            counts = record["disagreements"][part]
            cells = [f"{c['both']} / {c['only beyond distance']} / {c['only by this']}" for c in (counts[name] for name in DEFINITIONS[1:])]
            rows.append([_name(record), part, *cells])
    lines += [
        "## Where the definitions disagree",
        "",
        "Labels by both / only beyond distance / only by the definition of the column.",
        "",
        table(("model, treebank", "roles", *SHOWN[1:]), rows, left=2),
        "",
    ]
    rows = []
    for record in records:
        quartiles = [record["explained"][name]["quartiles"] for name in DEFINITIONS]
        rows.append([_name(record), *("–" if q is None else f"{q[1]:.0%} ({q[0]:.0%} – {q[2]:.0%})" for q in quartiles)])
    lines += [
        "## Share explained by distance",
        "",
        "(Bias of the twin − 1) / (bias − 1) of the labels of content of each definition: median and quartiles. It is negative where the twin "
        "attends to the sieve less than uniform attention does.",
        "",
        table(("model, treebank", *SHOWN), rows),
        "",
    ]
    return lines


def write_relations(records: Sequence[Record]) -> list[str]:
    """Returns the lines of the tables of relations, one for each model."""
    lines = [
        "## Relations",
        "",
        "Heads with the role beyond distance / by corrected bias / by strongest key; then the head with the largest excess mass, with the 95 % "
        "interval of that mass for this one head (the largest of many is flattered), **bold** where it has the role beyond distance. –: not tested.",
        "",
    ]
    for model in dict.fromkeys(record["model"] for record in records):
        own = [record for record in records if record["model"] == model]
        roles = sorted({role for record in own for role in record["relations"]})
        rows = [[f"`{role}`", *(_relation_cell(record["relations"].get(role)) for record in own)] for role in roles]
        lines += [f"### {model}", "", table(("role", *(record["language"] for record in own)), rows), ""]
    return lines


def _relation_cell(relation: Record | None) -> str:
    if relation is None:
        return "–"
    counts = " / ".join(str(relation["labels"][name]) for name in (BEYOND, CORRECTED, STRONGEST))
    strongest = relation["strongest"]
    if strongest is None:
        return f"{counts}, not testable"
    excess = f"{strongest['excess']:.2f} ({strongest['excess_low']:.2f} … {strongest['excess_high']:.2f})"
    return f"{counts}, {strongest['head']} {f'**{excess}**' if strongest['q'] <= SIGNIFICANT else excess}"


def judge_relations(record: Record) -> Verdict:
    """Judges whether every relation that Voita et al. tested has a head beyond distance, in a direction at least."""
    heads = {
        relation: [
            record["relations"].get(f"{relation}{direction}", {"labels": {BEYOND: 0}})["labels"][BEYOND] for direction in ("", "-of")
        ]
        for relation in (f"syntax:{name}" for name in VOITA_RELATIONS)
    }
    here = ", ".join(f"{name.partition(':')[2]} {to} and {back}" for name, (to, back) in heads.items())
    n = sum(any(counts) for counts in heads.values())
    sentence = f"{HOLDS}: all four" if n == len(heads) else f"{PARTLY}: {n} of four" if n else FAILS
    return Verdict(f"heads from dependent and from governor: {here}", f"{sentence}.")


def judge_positional(record: Record) -> Verdict:
    """Judges whether a head attends to a neighbour nine times in ten."""
    heads = [f"{row['head']} {row['role'].partition(':')[2]} ({row['accuracy']:.2f})" for row in record["positional"]]
    return Verdict(", ".join(heads) or "none", f"{HOLDS}." if heads else f"{FAILS}.")


def judge_rare(record: Record) -> Verdict:
    """Judges whether a head of the first layer attends to the rarest token beyond distance."""
    rare = [relation for role, relation in record["relations"].items() if _family(role) == "rare"]
    if not rare:
        return Verdict("not tested", f"{OPEN}.")
    layers = sorted({layer for relation in rare for layer in relation["layers beyond distance"]})
    sentence = f"{HOLDS}." if 0 in layers else f"{PARTLY}: in other layers." if layers else f"{FAILS}."
    return Verdict(f"layers with such a head: {', '.join(map(str, layers)) or 'none'}", sentence)


def judge_syntactic(record: Record) -> Verdict:
    """Judges by the labels that remain whether syntactic labels are more than distance."""
    counts = record["disagreements"]["syntax"][PUBLISHED]
    published, swapped = counts["both"] + counts["only by this"], record["swapped_alone"].get("syntax")
    if not published:
        return Verdict("no label as published", f"{OPEN}.")
    share, ratio = counts["both"] / published, None if swapped is None else swapped["ratio"]
    false = "no estimate of false ones" if ratio is None else f"an estimated {ratio:.1%} of syntactic labels beyond distance are false"
    sentence = HOLDS if share >= 0.9 else PARTLY if counts["both"] else FAILS
    return Verdict(f"{counts['both']} of {published} labels remain ({share:.0%}); {false}", f"{sentence}.")


def judge_both(record: Record) -> Verdict:
    """Judges whether as many heads are local and syntactic at once as were reported."""
    shares = {name: record["several"][name]["both"] / record["n_heads"] for name in (PUBLISHED, BEYOND)}
    sentence = HOLDS if shares[BEYOND] >= PANDE_SHARE else FAILS
    return Verdict(f"{shares[PUBLISHED]:.0%} by the published rule, {shares[BEYOND]:.0%} beyond distance", f"{sentence}.")


def judge_middle(record: Record) -> Verdict:
    """Judges whether the heads that are local and syntactic are in the middle layers."""
    several = record["several"][BEYOND]
    if several["both"] < 2:
        return Verdict(f"heads that are both: {several['both']}", f"{OPEN}: too few.")
    here = f"{several['both in the middle']} of {several['both']} in the middle third, p = {several['p']:.2g}"
    return Verdict(here, f"{HOLDS}." if several["p"] <= SIGNIFICANT else f"{FAILS}.")


FINDINGS = (
    ("Some heads follow nsubj, obj, amod or advmod (Voita et al. 2019)", judge_relations),
    ("Some heads attend to the neighbour in nine of ten tokens (Voita et al. 2019)", judge_positional),
    ("A head of the first layer attends to the rarest token (Voita et al. 2019)", judge_rare),
    ("Heads are syntactic (Pande et al. 2021): labels by the published rule that remain", judge_syntactic),
    ("42 % of heads or more are local and syntactic at once (Pande et al. 2021)", judge_both),
    ("Heads that are both are in the middle layers (Pande et al. 2021)", judge_middle),
)
"""What the papers found, and the rule that judges it from the record of a model and a treebank."""


def write_findings(records: Sequence[Record]) -> list[str]:
    """Returns the lines on what remains of the findings, on English, which both models were trained on."""
    lines = [
        "## What remains of the findings of 2019 and 2021",
        "",
        "On the English treebank, which is the language of both models. A relation has a head if one has the role beyond distance (q ≤ 0.05); a "
        "positional head is one whose 95 % interval of accuracy lies above 0.9; *middle layers* are the middle third, with the chance that as many "
        "heads fall there if they are dealt out at random (hypergeometric, ≤ 0.05). Syntactic labels count as more than distance if nine of ten "
        "remain. What is said of Pande et al. is from memory. A finding that does not show in these models is not refuted for the papers' models; "
        "other findings: [Which findings hold](findings.md).",
        "",
    ]
    english = [record for record in records if record["language"] == "English"]
    rows = [
        [claim, record["model"], verdict.here, verdict.sentence]
        for claim, judge in FINDINGS
        for record in english
        for verdict in [judge(record)]
    ]
    return [*lines, table(("finding", "model", "here", "verdict"), rows, left=4), ""]


def write_induction() -> list[str]:
    """Returns the lines on the heads of SmolLM2 under one fixed period and under varied ones; nothing if these were not measured."""
    if not LANGUAGE.is_file():
        return []
    content = json.loads(LANGUAGE.read_text(encoding="utf-8"))
    rows = []
    for role, before in content["heads_of_release_0_1"].items():
        now = content["strongest"][role]
        common = [head for head in before if head in [row["head"] for row in now]]
        shown = ", ".join(f"{row['head']} {row['bias']:.1f}" for row in now)
        rows.append(
            [f"`{role}`", ", ".join(before), shown, f"{len(common)} of {len(before)}", "yes" if before[0] == now[0]["head"] else "no"]
        )
    header = ("role", "release 0.1.0", "now, with their bias", "in both", "same first")
    return [
        "## Induction heads with varied periods",
        "",
        "The strongest heads of SmolLM2-135M-Instruct by sieve bias ([Real models](real-models.md#induction-heads-of-a-language-model)). "
        "Release 0.1.0 repeated random sequences after 24 tokens, where an offset of −23 finds the key; now each has a period from 12 to 48.",
        "",
        table(header, rows, left=5),
        "",
        "Heads that have the role, each definition on the same measurements: "
        + "; ".join(
            f"`{role}` " + ", ".join(f"{number} by {name}" for name, number in numbers.items())
            for role, numbers in content["labels"].items()
        )
        + ".",
        "",
    ]


def write_page() -> None:
    """Writes docs/roles-on-treebanks.md from what was measured."""
    content = json.loads(RESULTS.read_text(encoding="utf-8"))
    records = content["tables"]
    parts = (write_findings(records), write_overview(records), write_families(records), write_relations(records), write_induction())
    lines = [HEADER.format(limit=content["limit"]), *(line for part in parts for line in part)]
    DOCUMENT.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of data sets")
    parser.add_argument("--models", type=Path, help="the folder of models")
    parser.add_argument("--out", type=Path, help="the folder that keeps the runs")
    parser.add_argument("--limit", type=int, default=500, help="sentences of each treebank")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    options = parser.parse_args()
    if not options.page:
        if None in (options.data, options.models, options.out):
            parser.error("--data, --models and --out are needed")
        measure(options.data.resolve(), options.models.resolve(), options.out.resolve(), options.limit)
    write_page()


if __name__ == "__main__":
    main()
