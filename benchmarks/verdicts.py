"""What the papers found, and how `findings.py` judges from its own measurements whether that holds: for each finding one table and one rule.

A finding holds or not by an interval or a test of the table. That nothing differs is shown by intervals that are narrow, never by the absence of
significance; where they are wide, or the table is missing or undefined, the finding is open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Rows = Sequence[Mapping[str, Any]]
HOLDS, PARTLY, FAILS, OPEN = "It holds", "It holds in part", "It does not show", "Open"
SIGNIFICANT = 0.05
SMALL, ALIKE = 0.02, 0.1
"""What counts as a small change of accuracy (2 points), and as alike shares of a score."""


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
    """Judges how many heads go for at most 2 points, by the lower end of the interval of the ranking that loses least."""
    rows = [row for row in tables["curve"] if not str(row["method"]).startswith("random")]
    good = [row for row in rows if row["against the dense model low"] >= -SMALL]
    if not good:
        least = max(row["against the dense model low"] for row in rows)
        return Verdict(
            f"at most {-100 * least:.1f} points worse with the most heads measured", f"{OPEN}: no size is shown to cost 2 points at most."
        )
    row = max(good, key=lambda row: (row["removed"], row["against the dense model low"]))
    here = f"{row['removed']:.0%} of the heads for at most {max(0.0, -100 * row['against the dense model low']):.1f} points"
    return Verdict(here, f"{HOLDS}: many go." if row["removed"] >= 0.4 else f"{PARTLY}: fewer go.")


def judge_transfer(tables: Mapping[str, Rows]) -> Verdict:
    """Judges the correlation of changes on two tasks."""
    row = next(row for row in tables["correlations"] if row["Pearson"] is not None)
    sentence = f"{HOLDS}: above 0." if row["Pearson low"] > 0 else f"{OPEN}: the interval holds 0."
    return Verdict(f"r = {_interval(row, 'Pearson', '.2f')} for the {row['change of']}", sentence)


def judge_dynamics(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether more heads are certified to go late in training than early."""
    rows = tables["checkpoints"]
    name = next(column for column in rows[0] if column.startswith("heads that go"))
    shares = [row[name] for row in rows if row[name] is not None]
    sentence = f"{HOLDS}: more are certified to go later." if shares[-1] > shares[0] else f"{OPEN}: no more are certified to go later."
    return Verdict(f"{shares[0]:.0%} at least at the first checkpoint above chance, {shares[-1]:.0%} at the last", sentence)


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
    """Judges whether the gap between importance and random heads closes with retraining, by its intervals before and after."""
    rows = {row["stage"]: row for row in tables["choices"] if row["choice"] == "importance"}
    before, after = rows["as it is"], rows["recovered"]
    low, high = after["against random low"], after["against random high"]
    if low >= -SMALL and high <= SMALL:
        sentence = f"{HOLDS}: the gap closes."
    elif high < before["against random low"]:
        sentence = f"{PARTLY}: the gap shrinks." if high > 0 else f"{HOLDS}: nothing is left of the gap."
    else:
        sentence = f"{OPEN}: the intervals overlap." if low <= before["against random high"] else f"{FAILS}: the gap grows."
    return Verdict(f"{_interval(before, 'against random')} as it is, {_interval(after, 'against random')} recovered", sentence)


def _judge_no_effect(rows: Rows, name: str, what: str) -> str:
    """Returns whether differences are shown to be small: one beyond its interval refutes it, all intervals within 2 points of 0 confirm it."""
    different = [row for row in rows if row[f"{name} low"] > 0 or row[f"{name} high"] < 0]
    if any(row["q"] is not None and row["q"] <= SIGNIFICANT for row in different):
        return f"{FAILS}: {what} matters."
    widest = max(max(abs(row[f"{name} low"]), abs(row[f"{name} high"])) for row in rows)
    return f"{HOLDS}: at most 2 points." if widest <= SMALL else f"{OPEN}: differences of {100 * widest:.0f} points are not excluded."


def judge_strategies(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether strategies differ from random heads."""
    rows = [row for row in tables["strategies"] if row["q"] is not None]
    texts = [f"{row['strategy']} {_interval(row, 'against random')}" for row in rows]
    return Verdict(f"against random: {', '.join(texts)}", _judge_no_effect(rows, "against random", "where heads go"))


def judge_roles(tables: Mapping[str, Rows]) -> Verdict:
    """Judges whether sparing the heads of a role gains anything over random heads."""
    rows = [row for row in tables["rows"] if row["its heads go"] == "last" and row["q"] is not None]
    better = [row for row in rows if row["q"] <= SIGNIFICANT and row["against random"] > 0]
    most = max(row["against random high"] for row in rows)
    if better:
        sentence = f"{PARTLY}: it gains for {', '.join(dict.fromkeys(str(row['role']) for row in better))}."
    else:
        sentence = (
            f"{HOLDS}: it gains 2 points at most." if most <= SMALL else f"{OPEN}: gains of {100 * most:.0f} points are not excluded."
        )
    return Verdict(f"{len(better)} of {len(rows)} roles and sizes gain (q ≤ {SIGNIFICANT}), {100 * most:.0f} points at most", sentence)


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
    different = [row for row in rows if row["q"] is not None and row["q"] <= SIGNIFICANT]
    more = sum(row["difference"] > 0 for row in different)
    widest = max(max(abs(row["difference low"]), abs(row["difference high"])) for row in rows if row["difference low"] is not None)
    if different:
        sentence = f"{FAILS}: the models differ."
    else:
        sentence = f"{HOLDS}: alike." if widest <= ALIKE else f"{OPEN}: differences of {widest:.0%} of the score are not excluded."
    here = f"of {len(rows)} removals {more} cost the multilingual model more, {len(different) - more} less (q ≤ {SIGNIFICANT})"
    return Verdict(here, sentence)


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
