"""Results of studies: tables hold together, and plain data gives them back."""

from __future__ import annotations

import json

import pytest

from headcount.core.study_result import Column, StudyResult, Table, format_interval, interval_columns
from headcount.runs.report.studies import pack_table

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


def test_rounding_is_shown_as_nothing() -> None:
    rows = ((0.0, -5.55e-18, 0.01), (3e-17, -5.55e-18, 5.55e-18), (2e-9, 1e-9, 3e-9), (0.5, -0.0, 1.0), (1e-20, None, None))
    table = Table("rows", interval_columns("change", "+.3g"), rows)
    assert [cell for (cell,) in table.format().rows] == [
        "+0 (+0 … +0.01)",
        "+0 (+0 … +0)",
        "+2e-09 (+1e-09 … +3e-09)",
        "+0.5 (+0 … +1)",
        "+0",
    ]
    assert table.rows == rows and table.records()[0]["change low"] == -5.55e-18, "the numbers themselves stay"
    assert [row[1] for row in pack_table(table)["rows"]] == [0.0, 0.0, 1e-9, 0.0, None]
    assert format_interval(0.0, -5.55e-18, 0.01) == "+0 (+0 … +0.01)" and format_interval(0.25, None, None) == "+0.25"
    p_values = Table("rows", (Column("p", format=".2g"),), ((1e-20,),))
    assert p_values.format().rows == [["1e-20"]], "a number without an interval may be as small as that"
