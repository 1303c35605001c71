"""`headcount roles`: tests the roles of all heads and prints the tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headcount.app.console.corpus import open_corpus
from headcount.app.console.inputs import ModelAndTaskOptions
from headcount.app.console.models import open_task_model, set_run_description
from headcount.app.console.session import Session
from headcount.app.console.words import task_words
from headcount.behaviour.base import Corpus
from headcount.behaviour.spec import RoleSpec, parse_roles
from headcount.core.definition import Definition
from headcount.core.role_table import BestHead, RoleScore, RoleTable
from headcount.runs.store import Run
from headcount.workflows.roles import roles_into

N_SHOWN = 5
"""How many roles of a head are shown without --all; of pairs of roles, twice as many."""
COLUMNS = ("bias", "95% interval", "of at most", "q", "accuracy", "baseline", "at", "chance", "n")
BEST = ("best", "accuracy", "95% interval", "baseline", "at", "chance", "n", "bias", "q")
NUMBERS = ("heads", "bias", "of at most", "accuracy", "baseline", "at", "chance", "n")


def _format_role_score_cells(row: RoleScore) -> tuple[object, ...]:
    return (
        f"{row.bias:.2f}",
        f"{row.low:.2f} … {row.high:.2f}",
        f"{row.maximum:.1f}",
        f"{row.q:.2g}",
        f"{row.accuracy:.2f}",
        f"{row.baseline:.2f}",
        f"{row.baseline_offset:+d}",
        f"{row.chance:.2f}",
        row.n_sentences,
    )


def _format_best_head_cells(table: RoleTable, best: BestHead | None) -> tuple[object, ...]:
    """Returns the cells of the best head of a role, measured on the half of the sentences that did not choose it."""
    if best is None:
        return ("–",) * len(BEST)
    (row,) = (row for row in table if (row.head, row.role) == (best.head, best.role))
    return (
        best.head,
        f"{best.accuracy:.2f}",
        f"{best.accuracy_low:.2f} … {best.accuracy_high:.2f}",
        f"{best.baseline:.2f}",
        f"{best.baseline_offset:+d}",
        f"{best.chance:.2f}",
        best.n_sentences,
        f"{row.bias:.2f}",
        f"{row.q:.2g}",
    )


def _show_role_table(session: Session, table: RoleTable, show_all: bool) -> None:
    _show_heads(session, table, show_all)
    n_heads = {role: sum(row.has_role for row in table if row.role == role) for role in table.roles()}
    best = {row.role: row for row in table.best_heads}
    session.write_table(
        ("role", "heads", *BEST),
        [(role, number, *_format_best_head_cells(table, best.get(role))) for role, number in n_heads.items()],
        right_aligned=NUMBERS,
    )
    session.write_line(
        "the best head is the most accurate one on one half of the sentences (by a hash of their tokens); accuracy, baseline, chance and n are those "
        "of the other half, bias and q of all"
    )
    if without_best := [role for role in n_heads if role not in best]:
        session.write_line(f"no best head, for want of sentences in both halves: {', '.join(without_best)}")
    _show_heads_by_layer(session, table)
    _show_role_pairs(session, table, show_all)
    _show_content_roles(session, table, show_all)
    _show_disagreements_of_definitions(session, table, show_all)
    _show_false_label_estimate(session, table)
    if show_all:
        rows = [(row.head, row.role, "yes" if row.has_role else "no", *_format_role_score_cells(row)) for row in table]
        session.write_table(("head", "role", "has it", *COLUMNS), rows, right_aligned=NUMBERS)
    reasons: dict[str, list[str]] = {}
    for role, reason in table.untested.items():
        reasons.setdefault(reason, []).append(role)
    for reason, roles in reasons.items():
        session.write_note(f"not tested: {', '.join(roles)}: {reason}")
    for reason, count in table.refused.items():
        session.write_note(f"{count} sentences left out: {reason}")


def _show_heads(session: Session, table: RoleTable, show_all: bool) -> None:
    """Prints the roles of each head with their bias, how many heads have several, and which roles no head has."""
    labels = table.labels()
    bias = {(row.head, row.role): row.bias for row in table}
    rows = []
    for head, roles in labels.items():
        listed = roles if show_all else roles[:N_SHOWN]
        more = f" and {len(roles) - len(listed)} more" if len(listed) < len(roles) else ""
        rows.append((head, ", ".join(f"{role} {bias[head, role]:.1f}" for role in listed) + more))
    if any(roles for _, roles in rows):
        session.write_table(("head", "roles with their bias, nearest to their maximum first"), [row for row in rows if row[1]])
    n_labelled = sum(1 for roles in labels.values() if roles)
    session.write_line(
        f"{n_labelled} of {len(labels)} heads have a role, {len(table.multifunctional())} more than one kind; "
        f"{len(labels) - n_labelled} have none of those tested ({len(table.roles())})"
    )
    by_note: dict[str, set[str]] = {}
    for row in table:
        if row.note:
            by_note.setdefault(row.note, set()).add(row.role)
    for note, roles in by_note.items():
        session.write_line(f"cannot be a label here: {', '.join(sorted(roles))}: {note}")
    without_head = [role for role in table.roles() if not any(row.has_role for row in table if row.role == role)]
    if without_head:
        session.write_line(f"no head has: {', '.join(without_head)}")
    session.write_line("")


def _show_heads_by_layer(session: Session, table: RoleTable) -> None:
    """Prints how many heads of each layer have each role that some head has, one table for each kind of attention."""
    sizes: dict[str, dict[str, int]] = {}
    for head in table.heads:
        layers = sizes.setdefault(head.stack, {})
        name = str(head).rpartition("H")[0]
        layers[name] = layers.get(name, 0) + 1
    for layers in sizes.values():
        equal_sizes = len(set(layers.values())) == 1
        columns = list(layers) if equal_sizes else [f"{name} of {size}" for name, size in layers.items()]
        rows = [
            (role, *(f"{round(share[name] * size)}" if share[name] else "·" for name, size in layers.items()))
            for role, share in table.share().items()
            if any(share[name] for name in layers)
        ]
        if rows:
            size = f" (of {next(iter(layers.values()))})" if equal_sizes else ""
            session.write_table((f"heads by layer{size}", *columns), rows, right_aligned=columns)


def _show_role_pairs(session: Session, table: RoleTable, show_all: bool) -> None:
    """Prints pairs of roles that the same heads have, most heads first, against chance."""
    pairs = sorted(table.colocation(), key=lambda pair: (pair.q > table.alpha, -pair.both, pair.a, pair.b))
    significant = [pair for pair in pairs if pair.q <= table.alpha]
    listed = pairs if show_all else significant[: 2 * N_SHOWN]
    if listed:
        columns = ("roles in the same heads", "", "both", "only the first", "only the second", "by chance", "q")
        session.write_table(
            columns,
            [(pair.a, pair.b, pair.both, pair.only_a, pair.only_b, f"{pair.expected:.1f}", f"{pair.q:.2g}") for pair in listed],
            right_aligned=columns[2:6],
        )
    session.write_line(f"{len(significant)} of {len(pairs)} pairs of roles share more heads than by chance (q ≤ {table.alpha:g})")


def _show_content_roles(session: Session, table: RoleTable, show_all: bool) -> None:
    """Prints the heads with roles of content beside their distance twins, the largest excess first; with `show_all` every head and role."""
    rows = [row for row in table if row.is_content and row.excess is not None and (row.has_role or show_all)]
    if rows:
        columns = ("head", "role of content", "bias", "twin's bias", "by distance", "excess mass", "95% interval", "q", "has it")
        rows.sort(key=lambda row: -(row.excess or 0.0))
        session.write_table(columns, [_format_content_role_cells(row) for row in rows], right_aligned=columns[2:6])
        session.write_line(
            "the twin attends by distance alone, as the head does outside the role; by distance is the share of the bias that it has too. "
            "A head that likes verbs goes beyond distance, too: the label does not say that it knows the relation"
        )


def _format_content_role_cells(row: RoleScore) -> tuple[object, ...]:
    share = row.explained_by_distance
    return (
        row.head,
        row.role,
        f"{row.compared_bias:.2f}",
        f"{row.twin_bias:.2f}",
        "–" if share is None else f"{share:.0%}",
        f"{row.excess:.3f}",
        f"{row.excess_low:.3f} … {row.excess_high:.3f}",
        f"{row.q:.2g}",
        "yes" if row.has_role else "no",
    )


def _show_disagreements_of_definitions(session: Session, table: RoleTable, show_all: bool) -> None:
    """Prints how many heads have each role by each definition, where they disagree, and with `show_all` which heads."""
    labels = table.labels_by_definition()
    counts = [(role, *(sum(name == role for _, name in own) for own in labels.values())) for role in table.roles()]
    differ = sorted(set().union(*labels.values()) - set.intersection(*labels.values()), key=lambda name: (name[1], str(name[0])))
    roles = {role for _, role in differ}
    columns = ("heads by definition", *labels)
    if differ:
        session.write_table(columns, [row for row in counts if row[0] in roles], right_aligned=columns[1:])
    session.write_line(f"the definitions disagree on {len(differ)} of {len(table)} heads × roles")
    if show_all and differ:
        rows = [(head, role, *("yes" if (head, role) in own else "no" for own in labels.values())) for head, role in differ]
        session.write_table(("head", "role", *labels), rows)


def _show_false_label_estimate(session: Session, table: RoleTable) -> None:
    """Prints the estimate of false discoveries."""
    swapped = table.swapped
    if swapped is None:
        return
    estimate = "no estimate, which needs 20" if swapped.ratio is None else f"about {swapped.ratio:.0%} of such labels are false"
    session.write_line(
        f"roles of content, on the {swapped.n_sentences} sentences with others of equal length: {swapped.labels} labels by their own annotations, "
        f"{swapped.swapped_labels:.1f} by those of other sentences (mean of {swapped.n_swaps} swaps): {estimate}"
    )


def _describe_corpus(corpus: Corpus) -> str:
    if corpus.grid:
        return f"{len(corpus.images)} images of {corpus.grid[0]} × {corpus.grid[1]} patches"
    pairs = sum(1 in sentence.segments for sentence in corpus.sentences)
    trees = sum(any(word.head is not None for word in sentence.annotated.words) for sentence in corpus.sentences)
    cut = sum(sentence.truncated for sentence in corpus.sentences)
    facts = [(pairs, "pairs"), (len(corpus.targets), "with translations"), (trees, "with trees"), (cut, "cut off")]
    tokens = sum(map(len, (sentence.ids for sentence in corpus.sentences)))
    return ", ".join([f"{len(corpus.sentences)} texts, {tokens} tokens", *(f"{number} {kind}" for number, kind in facts if number)])


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """The roles to test, the rule that makes them labels, and the text to test them on."""

    only: list[str] | None
    definition: str
    swaps: int
    text: Path | None = None
    embedded: str | None = None
    parser: str | None = None
    split: str = "calibration"


def label_heads(session: Session, data: ModelAndTaskOptions, request: RoleRequest, run: Run | None, *, show_all: bool) -> None:
    """Tests roles on a text, in a run if there is one, and prints the labels of all heads."""
    roles = parse_roles(request.only)
    spec = RoleSpec(roles, Definition.parse(request.definition), batch_size=data.examples_per_batch, seed=data.seed, swaps=request.swaps)
    model, heads, folder = open_task_model(session, data)
    text, embedded = request.text, request.embedded
    if run is not None:
        options = {"only": request.only, "definition": request.definition, "seed": data.seed, "swaps": request.swaps}
        set_run_description(run, session, data, model, heads, {"text": str(text or embedded or data.task), **options})
    corpus = open_corpus(
        session, data, model, folder, text_file=text, embedded_name=embedded, parser_name=request.parser, split=request.split
    )
    session.write_note(f"read: {_describe_corpus(corpus)}")
    with session.progress("roles") as advance:
        table = roles_into(run, model, corpus, spec, progress=advance)
    if run is not None:
        session.write_note(f"stored in {run.folder}")
    _show_role_table(session, table, show_all)
    session.write_json(_role_table_to_dict(data.model, table))
    named_text = ["--text", text] if text else ["--embedded", embedded or ""]
    words = task_words(data._asdict()) if data.task is not None else [*named_text, "--task", "TASK"]
    session.suggest_next("study", "roles-importance", data.model, *words)


def _role_table_to_dict(model_name: str, table: RoleTable) -> dict[str, Any]:
    """Returns what --json prints."""
    plain = table.to_dict()
    return {
        "model": model_name,
        "definition": table.definition,
        "tau": table.tau,
        "alpha": table.alpha,
        "data": table.data,
        "labels": {str(head): roles for head, roles in table.labels().items()},
        "multifunctional": [str(head) for head in table.multifunctional()],
        "best": plain["best_heads"],
        "rows": plain["rows"],
        "colocation": [asdict(pair) for pair in table.colocation()],
        "share": table.share(),
        "disagreements": [{"head": str(row.head), "role": row.role} for row in table.disagreements()],
        "definitions": {
            name: [{"head": str(head), "role": role} for head, role in sorted(own, key=str)]
            for name, own in table.labels_by_definition().items()
        },
        "curves": plain["curves"],
        "swapped": None if table.swapped is None else {**asdict(table.swapped), "ratio": table.swapped.ratio},
        "untested": dict(table.untested),
        "refused": dict(table.refused),
        "conditions": dict(table.conditions),
    }
