"""`headcount find`: searches the heads for a job, prints and writes the list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headcount.app.cli.find import FindOptions
from headcount.app.console.format import format_duration
from headcount.app.console.inputs import ModelOptions
from headcount.app.console.models import open_model
from headcount.app.console.session import Session
from headcount.core.errors import ArtifactError, DataError, OptionError, UnsupportedModel
from headcount.core.files import check_writable
from headcount.core.head_list import ALIGNMENT, HeadList, SetScore
from headcount.data.readers.speech import read_recordings
from headcount.surgery.alignment_heads import FILE, set_alignment_heads, write_alignment_heads
from headcount.surgery.source import local_folder, model_class_of, read_config
from headcount.workflows.find import FindRequest, check_job_of_class, describe_head_list, open_search, write_head_list

N_FURTHER = 3
"""How many heads of the ranking are shown behind those of the list."""


@contextmanager
def errors_as_wrong_usage() -> Iterator[None]:
    """Turns errors about the request, the data or the kind of model, which are found before any work, into wrong usage."""
    try:
        yield
    except (ArtifactError, DataError, UnsupportedModel) as error:
        raise OptionError(str(error)) from error


def find_heads(session: Session, job: str, model_name: str, options: FindOptions, loading: ModelOptions) -> None:
    """Finds the heads of a model for a job, prints them with their scores, and writes the list."""
    batch_size = None if options.batch_size == "auto" else int(options.batch_size)
    with errors_as_wrong_usage():
        request = FindRequest(job, options.data, options.out, options.overwrite, options.language, options.limit, batch_size, options.seed)
        if options.data is not None:
            read_recordings(options.data)
        if options.in_place:
            check_writable(Path(model_name) / FILE)
        source = local_folder(model_name)
        check_job_of_class(request, model_class_of(source, read_config(source, loading.trust_remote_code), loading.auto))
    model, _, folder = open_model(session, model_name, loading)
    session.begin_work("reading the data")
    with errors_as_wrong_usage():
        search = open_search(model, request, folder, trust_remote_code=loading.trust_remote_code)
    halves = search.halves
    session.write_note(
        f"{len(search.heads)} heads are ranked on {len(halves.choosing)} examples and tested on {len(halves.testing)}: "
        f"about {format_duration(search.estimate_seconds())} on this machine; seed {options.seed}"
    )
    with session.progress(f"finding {job} heads") as advance:
        head_list = search.run(advance).with_command(session.command)
    written = options.out
    if options.in_place:
        set_alignment_heads(model, head_list.heads)
        written = write_alignment_heads(model, folder)
    elif options.out is not None:
        write_head_list(model, head_list, request, folder)
    _show_head_list(session, head_list)
    if written is not None:
        session.write_note(f"wrote {written}")
    elif job == ALIGNMENT:
        session.write_note(
            "nothing was written; --out DIR makes a copy of the model with this list, --in-place writes it into the model folder"
        )
    session.write_json({**head_list.to_dict(), "out": None if written is None else str(written)})


def _show_head_list(session: Session, head_list: HeadList) -> None:
    """Prints the ranking as far as it matters, and the scores of sets on the half that tested."""
    ranked = head_list.ranking[: len(head_list.heads) + N_FURTHER]
    together = [f"{score:.3f}" for score in head_list.set_scores]
    session.write_table(
        ("head", "in the list", "score alone", "with those above"),
        [
            (head, "yes" if head in head_list.heads else "", f"{score:.3f}", (together[i : i + 1] or [""])[0])
            for i, (head, score) in enumerate(ranked)
        ],
        right_aligned=("score alone", "with those above"),
    )
    session.write_line(f"by the {head_list.n_choosing} examples that choose: {head_list.metric}")
    session.write_line("")
    session.write_table(
        ("tested on the others", "heads", "score", "95% interval"),
        [
            ("this list", *_format_set_score_cells(head_list.tested)),
            *((name, *_format_set_score_cells(score)) for name, score in head_list.compared.items()),
        ],
        right_aligned=("heads", "score"),
    )
    session.write_line(describe_head_list(head_list))
    session.write_line(f"attention that knows nothing would score {head_list.baseline:.3f}")
    if head_list.boundary_seconds is not None:
        session.write_line(f"the starts of words after the first are missed by {1000 * head_list.boundary_seconds:.0f} ms on average")
    if not head_list.beats_baseline:
        session.write_note(
            f"warning: this is not shown to be better than attention that knows nothing, so the model may have no {head_list.job} heads, or more "
            "examples are needed"
        )


def _format_set_score_cells(set_score: SetScore) -> tuple[object, ...]:
    return set_score.n_heads, f"{set_score.score:.3f}", f"{set_score.low:.3f} … {set_score.high:.3f}"
