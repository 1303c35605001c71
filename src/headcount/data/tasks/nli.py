from __future__ import annotations

from dataclasses import dataclass, replace

from headcount.core.errors import DataError
from headcount.data.readers.tables import PAIRS, ColumnLayout
from headcount.data.task_builder import TaskRequest
from headcount.data.tasks.classification import Classification, text_and_label_layout


@dataclass(frozen=True)
class NLI(Classification):
    """Natural language inference: classes of pairs of texts, from one table or three parallel line files (premises, hypotheses, labels).

    Without a header the columns are premise, hypothesis and label. The metric is accuracy.
    """

    info = Classification.info

    def resolve_data_and_columns(self, request: TaskRequest) -> tuple[TaskRequest, ColumnLayout]:
        """Returns the request, and how the columns of pairs are found."""
        if request.text_column and not request.text_pair_column:
            raise DataError(f"task '{request.name}' reads pairs: text_column is '{request.text_column}', name text_pair_column as well")
        layout = text_and_label_layout(request, PAIRS)
        return request, replace(layout, roles={3: layout.roles[3]})
