"""Natural language inference: classes of pairs of texts, from one table or from three parallel line files (premises, hypotheses, labels)."""

from __future__ import annotations

from headcount.core.errors import DataError
from headcount.data.open_task import Request
from headcount.data.readers.tables import PAIRS, Layout, read
from headcount.data.task import Task
from headcount.data.tasks.classification import USES, check_model, from_rows, layout

__all__ = ["USES", "build"]


def build(request: Request) -> Task:
    """The task."""
    check_model(request)
    if request.text_column and not request.text_pair_column:
        raise DataError(f"task '{request.name}' reads pairs: text_column is '{request.text_column}', name text_pair_column as well")
    found = layout(request, PAIRS)
    pairs = Layout(found.groups, {3: found.places[3]}, found.named)
    return from_rows(request, lambda source: read(source, pairs, request.most_rows))
