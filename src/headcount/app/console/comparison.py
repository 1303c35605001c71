"""The options of what a comparison measures beside the results of the pruned models, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headcount.app.console.format import format_interval_ends, format_p_value
from headcount.app.console.options import parse_numbers
from headcount.app.console.pruning import show_pruned_rows, show_size_tests, show_surviving_heads
from headcount.app.console.session import Session
from headcount.app.console.text import EmbeddedTextName, ParserName, TextFile, check_at_most_one_text
from headcount.core.definition import DEFAULT_DEFINITION
from headcount.core.stats.seed_scores import MIN_SEEDS
from headcount.core.study_result import format_interval
from headcount.workflows.analysis_spec import COMPARED_SIZES, BenchSizes

if TYPE_CHECKING:
    from headcount.runs.latency import LatencyRow
    from headcount.workflows.compare import Comparison
    from headcount.workflows.grid import MethodRow
    from headcount.workflows.remaining_roles import FamilyChange


MeasureLatency = Annotated[bool, typer.Option("--bench", help="Measure latency: the dense model, and each method at each size, heads cut.")]
Batches = Annotated[
    str | None,
    typer.Option("--batches", metavar="N,…", help=f"With --bench: batch sizes, by default {','.join(map(str, COMPARED_SIZES.batches))}."),
]
LatencyLength = Annotated[
    int | None,
    typer.Option("--length", metavar="N", min=1, help=f"With --bench: tokens of a row, by default {COMPARED_SIZES.lengths[0]}."),
]
KeepModels = Annotated[bool, typer.Option("--keep-models", help="Keep every pruned model in RUN, and measure its roles again on the text.")]
DefinitionText = Annotated[
    str | None,
    typer.Option(
        "--definition",
        metavar="NAME(…)",
        help=f"With --keep-models: when a head has a role, of `headcount ls definitions`; by default {DEFAULT_DEFINITION}.",
    ),
]


class MeasureOptions(NamedTuple):
    """What is measured on the pruned models beside their results: latency, and roles on a text."""

    bench: MeasureLatency = False
    batches: Batches = None
    length: LatencyLength = None
    keep_models: KeepModels = False
    definition: DefinitionText = None
    text: TextFile = None
    embedded: EmbeddedTextName = None
    parser: ParserName = None

    def check(self) -> None:
        """Raises BadParameter for an option without the one that it belongs to, and for values that are none."""
        for owner, names in (("bench", ("batches", "length")), ("keep_models", ("definition", "text", "embedded", "parser"))):
            stray = next((name for name in names if getattr(self, name) is not None), None)
            if stray is not None and not getattr(self, owner):
                raise typer.BadParameter(f"--{stray} goes with --{owner.replace('_', '-')}; add that, or leave it out")
        check_at_most_one_text(self.text, self.embedded)
        self.bench_sizes()

    def bench_sizes(self) -> BenchSizes | None:
        """Returns what latency is measured for; None where it is not measured."""
        if not self.bench:
            return None
        batches = COMPARED_SIZES.batches if self.batches is None else tuple(parse_numbers(self.batches, "--batches"))
        return BenchSizes(batches, COMPARED_SIZES.lengths if self.length is None else (self.length,), COMPARED_SIZES.rounds)


DEFAULT_MEASURE = MeasureOptions()


def show_comparison(session: Session, comparison: Comparison) -> None:
    """Prints the tables of a comparison."""
    show_pruned_rows(session, comparison.dense, comparison.models)
    show_surviving_heads(session, comparison.models)
    metric = comparison.dense.metric or "loss"
    _show_methods(session, comparison.methods, metric)
    compared = [row for row in comparison.methods if row.against_random is not None]
    _show_differences_from_random(session, compared, len(comparison.differences), metric)
    _show_latency(session, comparison.latency)
    _show_role_changes(session, comparison.role_changes)


def show_best_of_each_size(session: Session, comparison: Comparison) -> None:
    """Prints the model of each size that the selection split chose, with its bound; with a margin, the sizes tested in order."""
    from headcount.runs.report.certificates import describe_smallest_margin, format_bound
    from headcount.runs.results import choose_row_index_by_kept_count

    chosen, rows = comparison.chosen, comparison.models
    lines = [
        (rows[at].keep, rows[at].method, rows[at].seed, format_bound(quality), describe_smallest_margin(quality))
        for at in choose_row_index_by_kept_count(rows).values()
        if (quality := rows[at].certificate.quality)
    ]
    if lines:
        columns = ("heads", "best on selection", "seed", "worse by at most", "smallest margin certified")
        session.write_table(columns, lines, right_aligned=("heads", "seed", "worse by at most", "smallest margin certified"))
        session.write_line("each bound and each margin holds for its row alone")
    if chosen is not None and comparison.margin is not None:
        show_size_tests(session, chosen.tests, comparison.margin, comparison.dense.n_examples)


def _show_methods(session: Session, rows: Sequence[MethodRow], metric_name: str) -> None:
    lines = [
        (
            row.method,
            row.n_kept,
            row.n_seeds,
            f"{row.mean:.4g}",
            "" if row.deviation is None else f"{row.deviation:.2g}",
            "" if row.interval[0] is None else f"{row.interval[0]:.4g} … {row.interval[1]:.4g}",
        )
        for row in rows
    ]
    columns = ("over seeds", "heads", "seeds", metric_name, "sd", "95% interval")
    session.write_table(columns, lines, right_aligned=columns[1:])
    if any(row.n_seeds < MIN_SEEDS for row in rows):
        session.write_line(f"no standard deviation and no interval over seeds is given for fewer than {MIN_SEEDS} seeds\n")


def _show_differences_from_random(session: Session, rows: Sequence[MethodRow], n_all_differences: int, metric_name: str) -> None:
    """Prints the differences from random heads; those between other methods are in the table of the run."""
    lines = [
        (
            row.method,
            row.n_kept,
            f"{change.difference:+.4g}",
            format_interval_ends(change.low, change.high),
            format_p_value(change.p),
            format_p_value(row.q),
        )
        for row in rows
        if (change := row.against_random) is not None
    ]
    columns = ("against random", "heads", metric_name, "95% interval", "p", "q")
    if lines:
        session.write_table(columns, lines, right_aligned=columns[1:])
    n_pairs = n_all_differences - len(lines)
    further = f"; differences.csv also has {n_pairs} between other methods" if n_pairs else ""
    session.write_line(f"paired over examples, seeds averaged; q corrects p over this table (Benjamini–Hochberg){further}\n")


def _show_latency(session: Session, rows: Sequence[LatencyRow]) -> None:
    if not rows:
        return
    lines, dense = [], rows[0]
    for row in rows:
        if row.method == "dense":
            dense = row
            continue
        speed = format_interval(row.speedup, row.speedup_low, row.speedup_high, ".2f")
        lines.append((row.method, row.keep, row.batch, f"{1000 * dense.seconds:.3g}", f"{1000 * row.seconds:.3g}", speed))
    columns = ("latency of", "heads", "batch", "dense ms", "ms", "speed-up (95%)")
    session.write_table(columns, lines, right_aligned=columns[1:])
    session.write_line(
        f"medians of {dense.rounds} rounds on {dense.device}, {dense.length} tokens; speed by t over the log-ratios of the rounds\n"
    )


def _show_role_changes(session: Session, rows: Sequence[FamilyChange]) -> None:
    lines = [
        (row.method, row.n_kept, row.family, row.n_dense, *(f"{number:.3g}" for number in (row.removed, row.kept, row.lost, row.gained)))
        for row in rows
        if row.n_dense or row.gained
    ]
    columns = ("roles after", "heads", "family", "dense", "removed", "kept", "lost", "gained")
    if lines:
        session.write_table(columns, lines, right_aligned=("heads", *columns[3:]))
        session.write_line(
            "heads of each family of roles in the dense model: removed, kept or lost; gained by heads that stay; means over seeds\n"
        )
    elif rows:
        families = ", ".join(dict.fromkeys(row.family for row in rows))
        session.write_line(f"no head has a role of a family ({families}), neither in the dense model nor in a pruned one\n")
