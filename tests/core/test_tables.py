"""Plans and scores as files that people bring: what comes back, in which order, and which way is keep."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas
import pytest
import torch

import headcount as hc
from headcount.app.main import main
from headcount.core.errors import ArtifactError, PlanError
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.models.tiny.build import tiny_model

VALUES = {f"L{layer}H{head}": round(0.3 * layer + 0.01 * head**2, 4) for layer in range(2) for head in range(6)}


@pytest.fixture(scope="module")
def bert() -> torch.nn.Module:
    return tiny_model("bert", dtype=torch.float32)


@pytest.fixture(scope="module")
def folder(bert: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "bert"
    bert.save_pretrained(path)  # type: ignore[operator]
    return path


def csv(ends: str = "\n", separator: str = ",") -> str:
    return ends.join(["head,score", *(f"{head},{value}" for head, value in VALUES.items()), ""]).replace(",", separator)


def parquet() -> bytes:
    packed = io.BytesIO()
    pandas.DataFrame({"score": VALUES.values(), "head": VALUES.keys()}).to_parquet(packed)
    return packed.getvalue()


TABLES: dict[str, tuple[str, bytes]] = {
    "plain": ("t.csv", csv().encode()),
    "byte-order mark": ("t.csv", csv().encode("utf-8-sig")),
    "CRLF": ("t.csv", csv("\r\n").encode()),
    "both": ("t.CSV", csv("\r\n").encode("utf-8-sig")),
    "tabs": ("t.tsv", csv(separator="\t").encode()),
    "spaces around": ("t.csv", csv().replace(",", " , ").encode()),
    "quotes": ("t.csv", csv().replace("L0H0", '"L0H0"').encode()),
    "other columns": ("t.csv", "\n".join(f"{line},x" for line in csv().splitlines()).encode()),
    "rows": ("t.json", json.dumps([{"head": head, "score": value} for head, value in VALUES.items()]).encode()),
    "map": ("t.json", json.dumps(VALUES).encode("utf-8-sig")),
    "parquet": ("t.parquet", parquet()),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_as_people_have_them(kind: str, tmp_path: Path) -> None:
    name, content = TABLES[kind]
    (tmp_path / name).write_bytes(content)
    table = Scores.read(tmp_path / name)
    assert dict(zip(map(str, table.heads), table.values, strict=True)) == VALUES
    assert (table.higher_is_keep, table.stderr, table.method) == (True, (), "")


def test_whole_numbers_and_ties_are_scores(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("head,score,stderr\nL0H0,1,0\nL0H1,1,0.5\nL0H2,-3e-2,1\n")
    table = Scores.read(tmp_path / "t.csv")
    assert (table.values, table.stderr) == ((1.0, 1.0, -0.03), (0.0, 0.5, 1.0))
    assert {str(head) for head in table.ranking()[:2]} == {"L0H0", "L0H1"}


@pytest.mark.parametrize("higher", [True, False])
def test_the_table_of_a_run_tells_which_way_is_keep(higher: bool, bert: torch.nn.Module, tmp_path: Path) -> None:
    heads = hc.HeadMap.of(bert)
    ours = Scores(heads.heads, tuple(VALUES.values()), "a", higher_is_keep=higher)
    table = pandas.concat([scores.to_pandas().assign(method=scores.method) for scores in (ours, Scores(heads.heads, (0.0,) * 12, "b"))])
    table.to_csv(tmp_path / "scores.csv", index=False)
    table.to_parquet(tmp_path / "scores.parquet", index=False)
    for name in ("scores.csv", "scores.parquet"):
        actual = Scores.read(tmp_path / name, only_method="a")
        assert (actual.higher_is_keep, actual.ranking()) == (higher, ours.ranking())
        with pytest.raises(ArtifactError, match=r"by a, b; choose one, such as only_method='a'"):
            Scores.read(tmp_path / name)
    assert Scores.read(tmp_path / "scores.csv", only_method="a", higher_is_keep=True).higher_is_keep


def test_fitted_scores_have_the_order_and_the_units_of_the_model(tmp_path: Path) -> None:
    heads = hc.HeadMap.of(tiny_model("llama", num_key_value_heads=2))
    rows = {str(head): float(i) for i, head in enumerate(heads)}
    (tmp_path / "t.json").write_text(json.dumps(dict(reversed(rows.items()))))
    actual = Scores.read(tmp_path / "t.json").reorder(heads)
    assert (actual.heads, actual.values, actual.units) == (heads.heads, tuple(rows.values()), heads.units())
    assert len(Plan.keep_top(actual, 6).removed) == 6
    with pytest.raises(PlanError, match="L1H5 has no score"):
        Scores(actual.heads[:-1], actual.values[:-1]).reorder(heads)


def test_a_plan_comes_back_and_knows_its_model(bert: torch.nn.Module, tmp_path: Path) -> None:
    plan, heads = Plan.removing(["L1H0", "L0H3"], protected=["L0H0"]), hc.HeadMap.of(bert)
    plan.write(tmp_path / "bare.json")
    plan.write(tmp_path / "full.json", heads, weights="a" * 64)
    bare, full = Plan.read(tmp_path / "bare.json"), Plan.read(tmp_path / "full.json")
    assert plan == bare == full
    assert bare.model_identity is None
    full.check(heads)
    full.check(heads, "a" * 64)
    with pytest.raises(PlanError, match="other weights"):
        full.check(heads, "b" * 64)
    with pytest.raises(PlanError, match="of type 'bert', this one is 'gpt2'"):
        full.check(hc.HeadMap.of(tiny_model("gpt2")))
    full.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "full.json").read_bytes()


def test_a_plan_of_the_whole_model_is_known_to_be_of_the_cut_one(bert: torch.nn.Module, tmp_path: Path) -> None:
    heads = hc.HeadMap.of(bert)
    Plan.removing(["L1H1"]).write(tmp_path / "plan.json", heads)
    small = hc.cut(bert, Plan.removing(["L0H1"]))
    Plan.read(tmp_path / "plan.json").check(hc.HeadMap.of(small))


def _removed(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["removed"]


def test_cut_by_plan_and_by_scores(capsys: pytest.CaptureFixture[str], bert: torch.nn.Module, folder: Path, tmp_path: Path) -> None:
    from headcount.models.provenance import weight_hash

    Plan.removing(["L0H3"]).write(tmp_path / "plan.json", hc.HeadMap.of(bert), weights=weight_hash(hc.load(folder)))
    assert _removed(capsys, "cut", folder, "--plan", tmp_path / "plan.json", "--out", tmp_path / "a") == ["L0H3"]
    (tmp_path / "t.csv").write_text(csv())
    given = ("--scores", tmp_path / "t.csv")
    lowest = ["L0H0", "L0H1", "L0H2", "L0H3", "L0H4", "L0H5"]
    assert _removed(capsys, "cut", folder, *given, "--keep", "6", "--out", tmp_path / "b") == lowest
    assert _removed(capsys, "cut", folder, *given, "--keep", "50%", "--out", tmp_path / "c") == lowest
    assert _removed(capsys, "cut", folder, *given, "--keep", "11", "--lower-is-keep", "--out", tmp_path / "d") == ["L1H5"]


def test_cut_by_the_scores_of_a_run(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["score", str(folder), "--by", "magnitude,random", "--out", str(run), "-q"]) == 0
    capsys.readouterr()
    words = ("cut", folder, "--keep", "25%", "--method", "magnitude", "--out")
    by_table = _removed(capsys, *words, tmp_path / "a", "--scores", run / "scores.csv")
    by_folder = _removed(capsys, *words, tmp_path / "b", "--scores", run)
    assert by_table == by_folder
    assert len(by_table) == 9
