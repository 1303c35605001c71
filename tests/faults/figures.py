"""Writes the table of docs/faults.md out of what the last `make test-faults` kept in build/faults."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT, PAGE = HERE.parents[1] / "build" / "faults", HERE.parents[1] / "docs" / "faults.md"
BEGIN, END = "<!-- figures: written by make test-faults -->", "<!-- end of figures -->"


CAMPAIGNS = {
    "mutations": "files damaged ({kinds} kinds of damage × {files} kinds of file × {seeds} seeds, where they apply)",
    "replacement": "a saved model replaced, killed at every file operation, where names can be exchanged and where not",
}
"""One row of the table for each campaign that keeps `figure("campaign NAME", tried=…, lost=…, wrong=…, raw=…)`; labels may name further fields."""


def campaign_rows() -> list[tuple[str, str]]:
    """The row of every campaign: how often something was tried, and what came of it that must not."""
    by_name = {name: kept(f"campaign {name}") for name in CAMPAIGNS}
    return [
        (CAMPAIGNS[name].format(**figures), "{tried}: lost {lost} · wrong {wrong} · raw {raw}".format(**figures))
        for name, figures in by_name.items()
    ]


def kept(name: str) -> dict[str, Any]:
    path = KEPT / f"{name}.json"
    if not path.exists():
        sys.exit(f"{path} is missing: a part of `make test-faults` did not run or failed, so docs/faults.md is left as it was")
    return json.loads(path.read_text())


def bad_inputs() -> int | None:
    """How many bad inputs the catalogue beside this file has."""
    sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
    try:
        from bad_inputs import CASES
    except ImportError:
        return None
    return len(CASES)


def _threads() -> list[tuple[str, str]]:
    """One model in several threads and tasks, exceptions in hooks, and signals inside long methods."""
    threads, exceptions = ([kept(f"{what} {kind}") for kind in ("encoder", "decoder")] for what in ("threads", "exceptions"))
    stopped = [json.loads(path.read_text()) for path in KEPT.glob("stopped *.json")]
    right, refused, wrong = (sum(thread[name] for thread in threads) for name in ("right", "refused", "wrong"))
    return [
        ("one model in 2 to 4 threads or asyncio tasks: right · refused · wrong", f"{right} · {refused} · {wrong}"),
        (
            "exceptions at random calls inside a model: stopped · went on and right · model changed, or later results wrong",
            f"{sum(exception['stopped'] for exception in exceptions)} · {sum(exception['right'] for exception in exceptions)} · 0",
        ),
        (
            f"Ctrl-C, SIGTERM inside {len(stopped)} long methods; longest time from signal to end",
            f"{sum(one['signals'] for one in stopped)}; {max(one['longest'] for one in stopped):.2f} s",
        ),
    ]


def rows() -> list[tuple[str, str]]:
    kills, workers, team = kept("kills"), kept("workers killed"), kept("workers")
    disks = {name: kept(f"disk {name}")["points"] for name in ("ENOSPC", "EIO", "EACCES")}
    full, damage, artifacts, signals = kept("full disk"), kept("damage"), kept("artifacts"), kept("signals")
    tried = bad_inputs()
    return [
        ("random `kill -9`: survived · artifacts lost · tables wrong", f"{kills['kills']} · {kills['lost']} · {kills['wrong']}"),
        (
            "crash points: one at every file operation of a run of 12 artifacts",
            f"{kept('crashes')['points']} of {kept('crashes')['points']}",
        ),
        ("disk full from each file operation on", f"{disks['ENOSPC']} of {disks['ENOSPC']}"),
        ("input/output error, permission denied at each file operation", f"{disks['EIO']} + {disks['EACCES']}"),
        ("a real file system of 3 MB filled to so many different bytes; of these stopped a run", f"{full['rooms']}; {full['told']}"),
        (f"files corrupted in {damage['kinds']} ways: detected, set aside and computed again", f"{damage['files']} of {damage['files']}"),
        ("Ctrl-C, SIGTERM, twice Ctrl-C; longest time from signal to end", f"{signals['signals']}; {signals['longest']:.2f} s"),
        (
            "training (L0, DSP) killed at random, and at every step of writing a checkpoint: the identical plan and weights",
            " + ".join(f"{sum(kept(f'training {name}')[key] for name in ('l0', 'dsp'))}" for key in ("kills", "points")),
        ),
        ("`headcount prune` killed while it trains: the identical artifacts and model", f"{kept('prune killed')['kills']}"),
        ("workers killed at random, artifacts lost or computed twice for it", f"{workers['kills']}, 0"),
        (
            f"{team['workers']} workers on one folder, {team['blocks']} artifacts in {team['rounds']} runs: computed twice",
            str(team["twice"]),
        ),
        ("a process of torchrun killed, the run taken up again: identical", f"{kept('torchrun')['deaths']} of 1"),
        *campaign_rows(),
        *_threads(),
        ("bad inputs tried (in `make test`)", "no catalogue" if tried is None else str(tried)),
        ("10,000 artifacts opened and verified", f"{artifacts['opened']:.1f} s"),
        (
            "10,000 artifacts taken up again, one of them missing; memory for it",
            f"{artifacts['resumed']:.1f} s; {artifacts['memory']:.0f} MB",
        ),
        (
            "commit of a small artifact, synced: on a RAM disk · on a disk",
            " · ".join(f"{artifacts[name] * 1e3:.2f} ms" for name in ("commit_memory", "commit_disk")),
        ),
    ]


def main() -> None:
    where = f"{datetime.now(UTC):%Y-%m-%d}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    table = ["| fault | figure |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in rows())]
    page = PAGE.read_text(encoding="utf-8")
    before, _, remainder = page.partition(BEGIN)
    _, _, after = remainder.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, "", f"Measured {where}.", "", *table, "", END]) + after, encoding="utf-8")
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
