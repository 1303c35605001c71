"""Results of studies: tables hold together, and plain data gives them back."""

from __future__ import annotations

import json

import pytest

from headcount.core.study_result import Column, StudyResult, Table, interval_columns

TABLE = Table(
    "rows", (Column("layer"), *interval_columns("change", "+.2f", "loss")), (("L0", 0.5, 0.25, 0.75), ("L1", None, None, None)), "By layer"
)


def test_a_result_survives_its_plain_data() -> None:
    result = StudyResult("layers(how=mean)", (TABLE,), "Layers matter.", ("A note.",), {"rows": [{"value": 1.5}]})
    again = StudyResult.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result and again.table("rows") == TABLE
    with pytest.raises(KeyError):
        result.table("columns")


def test_rows_by_column_name() -> None:
    assert TABLE.records()[0] == {"layer": "L0", "change": 0.5, "change low": 0.25, "change high": 0.75}
    assert TABLE.columns[1].interval == ("change low", "change high") and TABLE.columns[1].unit == "loss"


def test_rows_and_intervals_must_fit_the_columns() -> None:
    with pytest.raises(ValueError, match="has 1 cells for 2 columns"):
        Table("t", (Column("a"), Column("b")), (("x",),))
    with pytest.raises(ValueError, match="interval of column 'a'"):
        Table("t", (Column("a", interval=("low", "high")),), ())
