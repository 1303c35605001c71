from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, BarFigure, Bars, HeatMap
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo
from headcount.studies._parts import layer_of_address

if TYPE_CHECKING:
    from headcount.studies._measure.rare_words import RareWordResult


@dataclass(frozen=True)
class RareWords(Study):
    """Is there a head that attends to the rarest word of a sentence? Shares of queries by the frequency rank of their strongest key.

    Voita et al. 2019: a head of the first layer attends to one of the least frequent tokens, in sentences whose rarest token is outside the 500 most
    frequent. The head is chosen on one half of these sentences and measured on the other; the rarest token itself is no query there.
    """

    _: KW_ONLY
    frequent: int = option(500, "Sentences count whose rarest token is outside so many most frequent tokens of the text", minimum=0)
    sentences: int | None = option(None, "How many sentences are read at most, drawn by a hash of their tokens", minimum=2)
    info = StudyInfo(paper="Voita et al. 2019", needs=frozenset({"model", "text"}), optional=frozenset({"task"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns a pass over the text."""
        return Effort(passes=self.sentences or context.limit or 500)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the best heads for the rarest tokens, and the shares of every head by frequency rank."""
        measured = _measure.rare_words.measure_rare_words(context, self.name, self.frequent, self.sentences)
        best = measured.best["rarest"] if "rarest" in measured.best else next(iter(measured.best.values()))
        return StudyResult(
            study=str(self),
            tables=(_table_of_best_heads_by_token_set(measured), _table_of_heads_with_frequency_rank_columns(measured)),
            sentence=(
                f"{best.head} has its strongest key on the rarest token for {best.accuracy:.0%} of the queries, a random key would for "
                f"{best.chance:.0%}, and the best offset ({best.baseline_offset:+d}) for {best.baseline:.0%} (p = {best.p:.2g})."
            ),
            notes=(f"Sentences whose rarest token is outside the {self.frequent} most frequent tokens of the text.",),
            figures=(_frequency_rank_shares_figure(measured), _rarest_token_share_by_head_figure(measured)),
            measurements={
                "model": context.model_name,
                "best": {label: {**asdict(row), "head": str(row.head)} for label, row in measured.best.items()},
                "shares": {str(head): list(shares) for head, shares in measured.shares.items()},
                "chance": list(measured.chance),
            },
        )


def _frequency_rank_labels(measured: RareWordResult) -> tuple[str, ...]:
    n_ranks = len(measured.chance) - 1
    return (*(str(rank) for rank in range(1, n_ranks + 1)), f"{n_ranks + 1} or more")


def _table_of_best_heads_by_token_set(measured: RareWordResult) -> Table:
    columns = (
        Column("tokens"),
        Column("best head"),
        *interval_columns("share of queries", ".1%"),
        Column("of the best offset", format=".1%"),
        Column("offset", format="+d"),
        Column("of a random key", format=".1%"),
        Column("queries"),
        Column("sentences"),
        Column("p", format=".2g"),
    )
    rows = []
    for label, best in measured.best.items():
        ends = (best.accuracy, best.accuracy_low, best.accuracy_high)
        rows.append(
            (label, str(best.head), *ends, best.baseline, best.baseline_offset, best.chance, best.n_tokens, best.n_sentences, best.p)
        )
    title = "Strongest key on the rarest tokens, on sentences that did not choose the head; intervals of 95 % over sentences"
    return Table("best", columns, tuple(rows), title)


def _table_of_heads_with_frequency_rank_columns(measured: RareWordResult) -> Table:
    columns = (Column("head"), Column("layer"), *(Column(f"rank {name}", format=".3f") for name in _frequency_rank_labels(measured)))
    rows = [(str(head), layer_of_address(head), *shares) for head, shares in measured.shares.items()]
    rows.append(("random key", "", *measured.chance))
    return Table("ranks", columns, tuple(rows), "Share of the queries by frequency rank of their strongest key", is_printed=False)


def _frequency_rank_shares_figure(measured: RareWordResult) -> BarFigure:
    head = next(iter(measured.best.values())).head
    return BarFigure(
        name="ranks",
        title=f"Frequency rank of the token that {head} attends to most; 1 is the rarest of the sentence",
        x=Axis("frequency rank"),
        y=Axis("share of the queries", is_share=True),
        table="ranks",
        n=next(iter(measured.best.values())).n_sentences + next(iter(measured.best.values())).n_choosing,
        n_unit="sentences",
        categories=tuple(name.replace(" or more", "+") for name in _frequency_rank_labels(measured)),
        bars=(Bars(str(head), measured.shares[head]), Bars("random key", measured.chance)),
    )


def _rarest_token_share_by_head_figure(measured: RareWordResult) -> HeatMap:
    layers = tuple(dict.fromkeys(layer_of_address(head) for head in measured.shares))
    by_layer = [[head for head in measured.shares if layer_of_address(head) == layer] for layer in layers]
    n_columns = max(map(len, by_layer))
    rows = [[measured.shares[head][0] for head in heads] + [None] * (n_columns - len(heads)) for heads in by_layer]
    best = next(iter(measured.best.values()))
    return HeatMap(
        name="heads",
        title="Share of the queries whose strongest key is the rarest token",
        x=Axis("head"),
        y=Axis("layer"),
        table="ranks",
        n=best.n_sentences + best.n_choosing,
        n_unit="sentences",
        rows=layers,
        columns=tuple(str(number) for number in range(n_columns)),
        values=tuple(tuple(row) for row in rows),
        value=Axis("share", is_share=True),
        marks=tuple(tuple(number < len(heads) and heads[number] == best.head for number in range(n_columns)) for heads in by_layer),
        mark_label="chosen on one half of the sentences",
    )
