"""What the papers found, and how `findings.py` judges from its own measurements whether that holds: for each finding one table and one rule.

A finding holds or not by an interval or a test of the table; where the table is missing or undefined it is open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Rows = Sequence[Mapping[str, Any]]
HOLDS, PARTLY, FAILS, OPEN = "It holds", "It holds in part", "It does not show", "Open"
SIGNIFICANT = 0.05
FEW = 0.1
"""Up to this share of all comparisons, significant ones count as few."""


@dataclass(frozen=True)
class Verdict:
    """What was measured here, and whether the finding holds, in one sentence."""

    here: str
    sentence: str


@dataclass(frozen=True)
class Finding:
    """A finding of a paper with the value that it reports; the experiment and item that measure it here, and the rule that judges their tables."""

    claim: str
    published: str
    experiment: str
    item: str
    rule: Callable[[Mapping[str, Rows]], Verdict]

    def judge(self, tables: Mapping[str, Rows]) -> Verdict:
        """Returns the verdict by the tables of the item; open where these are missing or hold no number."""
        try:
            return self.rule(tables)
        except (KeyError, IndexError, StopIteration, TypeError, ValueError):
            return Verdict("–", f"{OPEN}: not measured.")


def _interval(row: Mapping[str, Any], name: str, spec: str = "+.3g") -> str:
    return f"{row[name]:{spec}} ({row[f'{name} low']:{spec}} … {row[f'{name} high']:{spec}})"


def _smallest(rows: Rows, size: str = "heads") -> list[Mapping[str, Any]]:
    return [row for row in rows if row[size] == min(row[size] for row in rows)]


def judge_curve(tables: Mapping[str, Rows]) -> Verdict:
    """Judges how many heads go without a significant loss, by the ranking that loses least."""
    rows = [row for row in tables["curve"] if not str(row["method"]).startswith("random")]
    safe = [row for row in rows if row["against the dense model high"] >= 0]
    share = max((row["removed"] for row in safe), default=0.0)
    sentence = f"{HOLDS}: heads go for nothing." if share >= 0.4 else f"{PARTLY}: fewer go." if share else f"{FAILS}: every size costs."
    return Verdict(f"{share:.0%} of the heads without a significant loss", sentence)


def judge_transfer(tables: Mapping[str, Rows]) -> Verdict:
    """Judges the correlation of changes on two tasks."""
    row = next(row for row in tables["correlations"] if row["Pearson"] is not None)
    sentence = f"{HOLDS}: above 0." if row["Pearson low"] > 0 else f"{OPEN}: the interval holds 0."
    return Verdict(f"r = {_interval(row, 'Pearson', '.2f')} for the {row['change of']}", sentence)


def judge_dynamics(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether more heads can go late in training than early."""
    rows = tables["checkpoints"]
    name = next(column for column in rows[0] if column.startswith("heads that go"))
    shares = [row[name] for row in rows if row[name] is not None]
    sentence = f"{HOLDS}: more go later." if shares[-1] > shares[0] else f"{FAILS}: no more go later."
    return Verdict(f"{shares[0]:.0%} at the first checkpoint above chance, {shares[-1]:.0%} at the last", sentence)


def judge_speed(tables: Mapping[str, Rows]) -> Verdict:
    """Judges the speed-up at the largest batch."""
    row = max(tables["speed"], key=lambda row: (row["batch"], -row["heads"]))
    sentence = f"{HOLDS}: it is faster." if row["speed-up low"] > 1 else f"{OPEN}: the interval holds 1."
    return Verdict(f"{_interval(row, 'speed-up', '.2f')} times as fast at batch size {row['batch']}, {row['heads']} heads stay", sentence)


def judge_kinds(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether encoder heads go first and cross-attention last."""
    row = _smallest([row for row in tables["kinds"] if not str(row["method"]).startswith("random")])[0]
    counts = [row[kind] for kind in ("encoder-self", "decoder-self", "cross")]
    is_ordered = counts[0] < counts[1] <= counts[2]
    sentence = HOLDS if is_ordered else f"{PARTLY}: the encoder goes first" if counts[0] == min(counts) else FAILS
    return Verdict(f"{' / '.join(f'{count:.3g}' for count in counts)} of {row['heads']} that stay", f"{sentence}.")


def judge_controls(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether pruned models are better than the same heads from scratch."""
    row = tables["pairs"][0]
    sentence = f"{HOLDS}: pruned is better" if row["pruned minus control low"] > 0 else f"{OPEN}: the interval holds 0"
    return Verdict(
        f"{_interval(row, 'pruned minus control')} with {row['heads']} heads", f"{sentence}; see whether the control learnt the task."
    )


def judge_remaining(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether the share of heads with a role is larger among the heads that stay, and larger than among as many random ones."""
    rows = tables["families"]

    def share(row: Mapping[str, Any]) -> float:
        return 1 - row["no role"] / row["heads"]

    dense, last = max(rows, key=lambda row: row["heads"]), _smallest(rows)
    by_random = next(share(row) for row in last if str(row["method"]).startswith("random"))
    kept = next(row for row in last if not str(row["method"]).startswith("random"))
    sentence = f"{HOLDS}: their share rises." if share(kept) > max(share(dense), by_random) else f"{FAILS}: no more than at random."
    shares = (
        f"{share(dense):.0%} of all heads have a role, {share(kept):.0%} of the {kept['heads']} that stay, {by_random:.0%} of random ones"
    )
    return Verdict(f"{shares}; not tested", sentence)


def judge_methods(tables: Mapping[str, Rows]) -> Verdict:
    """Judges joint DSP at the fewest heads by its tests against every other method."""
    rows = [row for row in _smallest(tables["curve"]) if not str(row["method"]).startswith("random")]
    joint = next(row["method"] for row in rows if re.match(r"dsp(\(| |$)", str(row["method"])))
    better, worse = list[str](), list[str]()
    for row in _smallest(tables["pairs"]):
        if joint in (row["method"], row["other method"]) and row["q"] <= SIGNIFICANT:
            is_first, other = row["method"] == joint, row["other method"] if row["method"] == joint else row["method"]
            (better if (row["difference"] > 0) == is_first else worse).append(str(other))
    sentence = FAILS if worse else HOLDS if len(better) >= len(rows) - 2 else PARTLY if better else f"{OPEN}: no difference"
    counts = (
        f"better than {len(better)} and worse than {len(worse)} of {len(rows) - 1} others with {rows[0]['heads']} heads (q ≤ {SIGNIFICANT})"
    )
    return Verdict(counts, f"{sentence}.")


def judge_recovery(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether the gap between importance and random heads closes with retraining: it is undecided, or below half of what it was."""
    rows = {row["stage"]: row for row in tables["choices"] if row["choice"] == "importance"}
    before, after = rows["as it is"], rows["recovered"]
    gap, rest = before["against random"], after["against random"]
    if after["against random low"] <= 0 <= after["against random high"] or abs(rest) < abs(gap) / 2:
        sentence = f"{HOLDS}: the gap closes."
    else:
        sentence = (
            f"{PARTLY}: the gap shrinks." if after["against random high"] < before["against random low"] else f"{FAILS}: the gap stays."
        )
    return Verdict(f"{_interval(before, 'against random')} as it is, {_interval(after, 'against random')} recovered", sentence)


def judge_strategies(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether strategies differ from random heads."""
    rows = [row for row in tables["strategies"] if row["q"] is not None]
    different = [row for row in rows if row["q"] <= SIGNIFICANT]
    sentence = f"{HOLDS}: none differs." if not different else f"{FAILS}: where heads go matters."
    texts = [f"{row['strategy']} {row['against random']:+.3g}" for row in rows]
    return Verdict(f"against random: {', '.join(texts)}; {len(different)} of {len(rows)} differ", sentence)


def judge_roles(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether sparing the heads of a role gains anything over random heads."""
    rows = [row for row in tables["rows"] if row["its heads go"] == "last" and row["q"] is not None]
    better = [row for row in rows if row["q"] <= SIGNIFICANT and row["against random"] > 0]
    sentence = (
        f"{HOLDS}: sparing gains nothing." if not better else f"{PARTLY}: it gains for {', '.join(str(row['role']) for row in better)}."
    )
    return Verdict(f"{len(better)} of {len(rows)} roles and sizes gain", sentence)


def judge_late_layers(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether changes grow with the layer."""
    row = next(row for row in tables["trend"] if row["rank correlation with the layer"] is not None)
    correlation, p = row["rank correlation with the layer"], row["p"]
    sentence = HOLDS if correlation > 0 and p <= SIGNIFICANT else f"{OPEN}: no trend" if p > SIGNIFICANT else FAILS
    return Verdict(f"rank correlation {correlation:+.2f} with the layer (p = {p:.2g})", f"{sentence}.")


def judge_delimiters(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether the bias towards delimiters falls: for more heads and roles than it rises, and on average."""
    row = next(row for row in tables["families"] if row["family"] == "delimiter")
    falls = [row["bias fell"] > row["bias rose"], row["after"] < row["before"]]
    sentence = HOLDS if all(falls) else PARTLY if any(falls) else FAILS
    changes = f"fell for {row['share that fell']:.0%}, rose for {row['share that rose']:.0%} of heads × roles"
    return Verdict(f"mean bias {row['before']:.2f} → {row['after']:.2f}, {changes}", f"{sentence}.")


def judge_middle(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether heads of several families sit in the middle third."""
    row = next(row for row in tables["thirds"] if row["third"] == "middle")
    is_more = row["with several families"] > row["by chance"]
    sentence = HOLDS if is_more and row["p"] <= SIGNIFICANT else f"{OPEN}: not beyond chance" if row["p"] > SIGNIFICANT else FAILS
    return Verdict(
        f"{row['with several families']} in the middle third, {row['by chance']:.3g} by chance (p = {row['p']:.2g})", f"{sentence}."
    )


def judge_models(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether the multilingual model loses as much as the monolingual one."""
    rows = tables["against"]
    different = [row for row in rows if row["q"] <= SIGNIFICANT]
    more = sum(row["difference"] > 0 for row in different)
    sentence = f"{HOLDS}: few differ." if len(different) <= FEW * len(rows) else f"{FAILS}: the models differ."
    return Verdict(f"of {len(rows)} removals {more} cost the multilingual model more, {len(different) - more} less", sentence)


FINDINGS = (
    Finding("Many heads go at once, without retraining", "60 % on SST-2", "michel2019", "M8", judge_curve),
    Finding("The same heads matter on other data", "r = 0.56 to 0.68", "michel2019-pairs", "M6", judge_transfer),
    Finding(
        "Heads become superfluous in the course of training",
        "up to 40 % go for 10 to 15 % of the score, from epoch 10 on",
        "michel2019-training",
        "M13",
        judge_dynamics,
    ),
    Finding("Half of the heads gone is faster", "+17.5 % at batch sizes 16 and 64", "michel2019", "M11", judge_speed),
    Finding("Encoder heads go first, cross-attention last", "8 / 13 / 15 of 36 that stay", "voita2019", "V13", judge_kinds),
    Finding("The pruned model is better than the same heads from scratch", "+0.2 to +0.6 BLEU", "voita2019", "V12", judge_controls),
    Finding("Specialised heads survive, SST-2", "heads with a role go last", "voita2019-sst2", "V10", judge_remaining),
    Finding("Specialised heads survive, MRPC", "heads with a role go last", "voita2019-pairs", "V10", judge_remaining),
    Finding("Joint DSP is best at few heads", "joint DSP ≥ L0 ≫ pipelined > gradient", "li2021", "L6", judge_methods),
    Finding("A model with few heads is faster", "a third faster with 12 of 144 heads", "li2021", "L10", judge_speed),
    Finding(
        "Importance says little once a model is retrained, SST-2",
        "0.780 against 0.741 as it is, 0.830 against 0.828 recovered (BERT on MNLI)",
        "budhraja2020",
        "B8",
        judge_recovery,
    ),
    Finding("Importance says little once a model is retrained, MRPC", "as above", "budhraja2020-pairs", "B8", judge_recovery),
    Finding("It matters little which layers lose heads", "no preference for top or bottom", "budhraja2020", "B3", judge_strategies),
    Finding("Sparing the heads of a role gains nothing", "no role is worth sparing", "budhraja2020", "B6", judge_roles),
    Finding("Heads of several roles sit in the middle layers", "most in the middle third", "pande2021", "P8", judge_middle),
    Finding("Fine-tuning changes late layers most", "late layers", "pande2021-tuned", "P9", judge_late_layers),
    Finding(
        "Fine-tuning moves attention from delimiters to other tokens",
        "from SEP to other tokens",
        "pande2021-tuned",
        "P10",
        judge_delimiters,
    ),
    Finding(
        "A multilingual model loses as much as a monolingual one",
        "relative drops almost identical on four tasks",
        "budhraja2021",
        "X1",
        judge_models,
    ),
)
"""In the order of the papers. Published values are those that the summaries of `headcount paper` show, where they have them."""
