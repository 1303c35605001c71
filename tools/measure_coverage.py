"""Measures how often verdicts, intervals and roles err, by simulation, and writes the rows and the tables of docs/statistics.md.

Rows are stored as they are measured and not measured again; `--again NAME` measures anew those whose procedure has NAME in its name.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from interval_coverage import LEAST_SHOWN, Experiment, Row, interval_experiments
from role_coverage import role_experiments

ROOT = Path(__file__).resolve().parents[1]
ROWS, PAGE = ROOT / "benchmarks" / "coverage.json", ROOT / "docs" / "statistics.md"
START, END = "<!-- coverage: written by make coverage -->", "<!-- end of coverage -->"

TITLES = {
    "verdicts": "Verdicts at the margin: how often a model or head that loses just the margin is certified",
    "power": "Power: how often what does no harm is certified",
    "intervals": "Intervals: how often they cover the truth, where they are shown",
    "joint": "Joint statements: how often all of them hold together",
}


def plan(draws: int) -> list[Experiment]:
    """Returns all experiments."""
    return [*interval_experiments(draws), *role_experiments(draws // 20)]


def format_tables(rows: Sequence[Row]) -> str:
    """Returns the tables of the page."""
    lines: list[str] = []
    for table, title in TITLES.items():
        lines += [f"**{title}**", "", "| procedure | generator | n | draws | shown | rate | limit |", "|---|---|---:|---:|---:|---:|---|"]
        for row in rows:
            if row.table == table:
                rate = f"{row.rate:.3f}" if row.shown >= LEAST_SHOWN else ""
                mark = "" if row.holds else " **not kept**"
                draws = f"{row.draws:,}" if row.draws else "exact"
                lines.append(f"| {row.procedure} | {row.generator} | {row.n:,} | {draws} | {row.shown:.0%} | {rate} | {row.limit}{mark} |")
        lines.append("")
    return "\n".join(lines)


def write_page(rows: Sequence[Row]) -> None:
    """Writes the tables into the page between their marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n\n{format_tables(rows)}\n{END}{after}", encoding="utf-8")


def read_rows() -> list[Row]:
    """Returns the rows that are stored."""
    return [Row(**row) for row in json.loads(ROWS.read_text(encoding="utf-8"))] if ROWS.exists() else []


def write_rows(rows: Sequence[Row]) -> None:
    """Stores rows, one per line."""
    lines = ",\n".join(json.dumps(asdict(row), ensure_ascii=False) for row in rows)
    ROWS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def main() -> int:
    """Measures what is not stored yet, writes rows and page; returns 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000, help="draws of a cheap row; others take a part of them")
    parser.add_argument("--again", default=None, metavar="NAME", help="measures anew the rows whose procedure has NAME in its name")
    options = parser.parse_args()
    again = options.again
    known = {experiment.key: experiment for experiment in plan(options.draws)}
    stored = {row.key: row for row in read_rows() if row.key in known and (again is None or again not in row.procedure)}
    started = time.process_time()
    for number, (key, experiment) in enumerate(known.items(), 1):
        if key in stored:
            continue
        stored[key] = experiment.run()
        write_rows([stored[other] for other in known if other in stored])
        print(f"[{number}/{len(known)}, {time.process_time() - started:.0f} s] {stored[key].describe()}", flush=True)
    rows = [stored[key] for key in known]
    write_rows(rows)
    write_page(rows)
    return int(not all(row.holds for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
