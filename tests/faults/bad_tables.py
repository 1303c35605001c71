"""Score tables that must be refused: heads missing, extra or twice, numbers that are none, tables of other models, too much of everything."""

from __future__ import annotations

import io
import json
from typing import Any

from bad_kit import Call, Kit, case, line, table

from headcount.models.head_map import HeadMap


def _rows(kit: Kit, **changes: Any) -> dict[str, Any]:
    """A score for every head, some of them changed; None takes a head out."""
    rows = {str(head): 0.5 + i for i, head in enumerate(HeadMap.of(kit.stock.bert))} | changes
    return {head: value for head, value in rows.items() if value is not None}


def _cut(kit: Kit, content: str | bytes, name: str = "scores.csv", *words: str) -> Call:
    path = kit.file(name, content)
    return line("cut", kit.stock.plain(), "--scores", path, "--keep", "6", "--out", kit.place / "out", *words)


@case("score tables", "L1H3 has no score", "the scores are of 11 heads, the model has 12 heads", "Use scores of this very model")
def missing_head(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit, L1H3=None)))


@case("score tables", "L7H0 is not in this model", "Use scores of this very model")
def extra_head(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit, L7H0=1.0)))


@case("score tables", "L0H1 comes twice, first in", "write one row for each head")
def head_twice(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit)) + "L0H1,0.3\n")


@case("score tables", "L0H1' comes twice", "restore or rewrite it")
def head_twice_in_json(kit: Kit) -> Call:
    return _cut(kit, '{"L0H1": 1.0, "L0H1": 2.0}', "scores.json")


@case("score tables", "the score must be a number, got 'high", "write it as 0.25 or 1e-3")
def score_that_is_no_number(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit, L0H3="high")))


@case("score tables", "line 5: the score is NaN", "measure it again or leave the head out")
def score_of_nan(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit, L0H3="NaN")))


@case("score tables", "row 3: the score is missing", "a finite number for every head")
def score_of_nan_in_json(kit: Kit) -> Call:
    return _cut(kit, json.dumps(_rows(kit, L0H3=float("nan"))), "scores.json")


@case("score tables", "line 5: the score is -inf", "measure it again or leave the head out")
def score_of_infinity(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit, L0H3="-inf")))


@case("score tables", "the score 1e999 is beyond what a float holds", "divide all of them by a common number")
def score_beyond_a_float(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit, L0H3="1e999")))


@case(
    "score tables", "the score is 1000000000000000000000000000000000000000", "a ranking needs finite numbers, so measure it again or leave"
)
def score_beyond_a_float_in_json(kit: Kit) -> Call:
    return _cut(kit, json.dumps(_rows(kit, L0H3=10**400)), "scores.json")


@case("score tables", "line 5: the score is missing", "a finite number for every head")
def score_left_out(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit, L0H3="")))


@case("score tables", "row 3: the score must be a number, got True", "write it as 0.25")
def score_that_is_true(kit: Kit) -> Call:
    return _cut(kit, json.dumps(_rows(kit, L0H3=True)), "scores.json")


@case("score tables", "the score must be a number, got '0,5", "write it as 0.25 or 1e-3")
def score_with_a_decimal_comma(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit, L0H3='"0,5"')))


@case("score tables", "the score must be a number, got [1]", "write it as 0.25 or 1e-3")
def mixed_types(kit: Kit) -> Call:
    return _cut(kit, json.dumps(_rows(kit, L0H3=[1], L0H4="2")), "scores.json")


@case("score tables", "it has '0.1', '0.2', '0.3'", "Write one row for each head")
def grid_of_layers_and_heads(kit: Kit) -> Call:
    return _cut(kit, "0.1,0.2,0.3\n0.4,0.5,0.6\n")


@case("score tables", "it has 'head;score'", "commas (csv) or tabs (tsv) between")
def semicolons(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit)).replace(",", ";"))


@case("score tables", "line 14 has 1 columns, but the first line has 2", "give every line the same")
def row_too_short(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit)) + "L0H1\n")


@case("score tables", "has the column 'score' twice", "name every column once")
def column_twice(kit: Kit) -> Call:
    return _cut(kit, "head,score,score\nL0H0,1,2\n")


@case("score tables", "encoder.layer.0.head.1' is no head address", "Write L<layer>H<head>, zero-based, such as L3H7, or cross.L3H7")
def names_of_another_tool(kit: Kit) -> Call:
    return _cut(kit, table({"encoder.layer.0.head.1": 0.5}))


@case("score tables", "dec.L0H0 and 11 more is not in this model", "Use scores of this very model")
def names_of_another_model(kit: Kit) -> Call:
    return _cut(kit, table({f"dec.L{layer}H{head}": 0.5 for layer in range(2) for head in range(6)}))


@case("score tables", "holds scores by magnitude, random", "choose one, such as --method magnitude")
def several_methods(kit: Kit) -> Call:
    return _cut(kit, (kit.stock.run() / "scores.csv").read_bytes())


@case("score tables", "'magnitud'", "Did you mean 'magnitude'?", code=2)
def unknown_method(kit: Kit) -> Call:
    return _cut(kit, (kit.stock.run() / "scores.csv").read_bytes(), "scores.csv", "--method", "magnitud")


@case("score tables", "has no column 'method' in which 'gradient' could be", "name no method")
def method_of_a_table_without_any(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit)), "scores.csv", "--method", "gradient")


@case("score tables", "ranks and scores contradict each other", "Remove the column 'rank', or write it again")
def ranks_that_contradict_the_scores(kit: Kit) -> Call:
    import pandas

    frame = pandas.read_csv(kit.stock.run() / "scores.csv")
    frame["rank"] = frame["rank"].sample(frac=1, random_state=0).to_numpy()
    return _cut(kit, frame.to_csv(index=False), "scores.csv", "--method", "random")


@case("score tables", "the stderr is -0.1", "a standard error is 0 or more")
def negative_standard_error(kit: Kit) -> Call:
    return _cut(kit, "head,score,stderr\nL0H0,1,-0.1\n")


@case("score tables", "line 3: the stderr is missing", "for every head")
def standard_errors_of_some(kit: Kit) -> Call:
    return _cut(kit, "head,score,stderr\nL0H0,1,0.1\nL0H1,1,\n")


@case("score tables", "has more than 200000 rows", "a table has one row for each head and method")
def a_million_rows(kit: Kit) -> Call:
    return _cut(kit, "head,score\n" + "L0H0,1\n" * 1_000_000)


@case("score tables", "has 104857600 bytes, more than the 67108864 that a table of", "keep head and score only")
def a_hundred_megabytes(kit: Kit) -> Call:
    path = kit.file("scores.csv", "head,score\n")
    with path.open("r+b") as file:
        file.truncate(100 * 2**20)
    return line("cut", kit.stock.plain(), "--scores", path, "--keep", "6", "--out", kit.place / "out")


@case("score tables", "has 1000000 rows", "at most 200000 rows")
def parquet_of_a_million_rows(kit: Kit) -> Call:
    import pandas

    packed = io.BytesIO()
    pandas.DataFrame({"head": ["L0H0"] * 1_000_000, "score": 0.0}).to_parquet(packed)
    return _cut(kit, packed.getvalue(), "scores.parquet")


@case("score tables", "has 50 rows", "at most 200000 rows of 67108864 bytes")
def parquet_that_unpacks_to_a_gigabyte(kit: Kit) -> Call:
    import pandas

    packed = io.BytesIO()
    pandas.DataFrame({"head": ["L" + "0" * 10**6] * 50, "score": 0.0, "x": [str(i) * 10**6 for i in range(50)]}).to_parquet(packed)
    return _cut(kit, packed.getvalue(), "scores.parquet")


@case("score tables", "cannot be read as parquet", "write it again")
def parquet_that_is_none(kit: Kit) -> Call:
    return _cut(kit, b"PAR1" + bytes(100) + b"PAR1", "scores.parquet")


@case("score tables", "no row in it", "write one for each head")
def empty_table(kit: Kit) -> Call:
    return _cut(kit, "")


@case("score tables", "no row in it", "write one for each head")
def header_alone(kit: Kit) -> Call:
    return _cut(kit, "head,score\n")


@case("score tables", "cannot be read as csv", "write it again")
def torn_quotes(kit: Kit) -> Call:
    return _cut(kit, 'head,score\n"L0H0,1\n')


@case("score tables", "cannot be read as csv", "write it again")
def artifact_of_a_megabyte(kit: Kit) -> Call:
    return _cut(kit, f"head,score\nL0H0,{'1' * 10**6}\n")


@case("score tables", "0xff", "as UTF-8")
def table_in_utf_16(kit: Kit) -> Call:
    return _cut(kit, table(_rows(kit)).encode("utf-16"))


@case("score tables", "unknown kind of table '.pkl", "known are .csv, .tsv, .json, .parquet")
def table_of_unknown_kind(kit: Kit) -> Call:
    return _cut(kit, b"\x80\x04.", "scores.pkl")


@case("score tables", "scores.json is no valid JSON", "restore or rewrite it")
def json_of_brackets(kit: Kit) -> Call:
    return _cut(kit, "[" * 1_000_000, "scores.json")


@case("score tables", "holds no table", 'write [{"head": "L0H0", "score": 0.5}, …]')
def json_of_numbers(kit: Kit) -> Call:
    return _cut(kit, "[0.1, 0.2]", "scores.json")
