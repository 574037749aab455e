"""Faults under a steady load of eight clients, and a soak; exits with 1 where something was wrong, lost or grew.

``python -m benchmarks.failures`` tries every fault and then soaks for ten minutes; about twenty-five minutes. With
``--write`` it writes ``docs/results/failures.md``; ``--soak 60`` soaks for an hour and breaks nothing.
"""

from __future__ import annotations

import argparse
import atexit
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.failures import drills, places, report, traffic
from benchmarks.failures.callers import makers
from benchmarks.failures.drills import DRILLS, EVERY, PLACED, Row
from benchmarks.failures.faults import Stage
from benchmarks.failures.keeper import FAILURES
from benchmarks.failures.report import Page
from benchmarks.failures.soak import run as soak
from benchmarks.failures.stage import Built, built
from benchmarks.failures.traffic import Answers
from benchmarks.machine import machine

_RESULTS: Final = Path(__file__).resolve().parents[2] / "docs" / "results"
_PICTURE: Final = "soak.png"
_LATER: Final = "soak-later.png"
_SHORT_MINUTES: Final = 10.0
_PATIENT: Final = 15


def say(line: str) -> None:
    """Tell the one who waits."""
    print(line, file=sys.stderr, flush=True)


def break_things(stage: Built, answers: Answers, keys: list[str], refused: str) -> list[Row]:
    """Try the faults that are asked for; a line is printed for each."""
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append(row)
        say(report.table([row]).splitlines()[-1])
        for detail, count in row.details.items():
            say(f"  {count} x {detail}")
        for restart in row.restarts:
            say(f"  started again: {restart}")

    calls = makers(stage.targets, stage.material)
    with traffic.running(calls, answers) as load:
        for drill in (one for one in DRILLS if one.key in keys):
            keep(drills.measure(drill, Stage(stage.evidence, stage.critic, stage.milvus, load)))
    for drill in (one for one in EVERY if one.key in keys and one.key in PLACED):
        if refused:
            keep(Row(fault=drill.what, skipped=refused))
        else:
            keep(PLACED[drill.key](stage.settings, stage.targets, stage.material, answers, stage.milvus))
    return rows


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failures", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[one.key for one in EVERY], help="these faults, and no soak")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="no faults, and a soak of so many minutes")
    parser.add_argument("--write", action="store_true", help="write the page")
    options = parser.parse_args()
    refused = places.why_not()
    if not refused and options.soak is None:
        places.privately()
    command = "python -m benchmarks.failures" + "".join(f" {word}" for word in sys.argv[1:])
    atexit.register(places.leave)
    # Unwinds, so that every server is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Nothing is broken in a soak, and a server that was started again would have no course of memory to show.
    with built(say, failures=FAILURES if options.soak is None else _PATIENT) as stage:
        say("recording the right answers")
        answers = traffic.record(makers(stage.targets, stage.material))
        if options.soak is not None:
            found = Page(long=soak(stage, answers, minutes=options.soak), long_command=command)
        else:
            keys = options.only if options.only is not None else [one.key for one in EVERY]
            found = Page(machine(), command, break_things(stage, answers, keys, refused))
            if options.only is None:
                say(f"soaking for {_SHORT_MINUTES:.0f} minutes")
                found.short = soak(stage, answers, minutes=_SHORT_MINUTES)
    if options.write:
        write(found)
    print(report.text(found, _PICTURE))
    soaks = [one for one in (found.short, found.long) if one is not None]
    sys.exit(0 if all(one.passed for one in (*found.rows, *soaks)) else 1)


def write(found: Page) -> None:
    """Put figures, page and picture into the results; what this run did not measure stays there as it is."""
    from benchmarks.failures.figure import draw

    path = _RESULTS / "failures.json"
    page = msgspec.json.decode(path.read_bytes(), type=Page) if path.is_file() else Page()
    if found.long is not None and page.long is not None and found.long.minutes < page.long.minutes:
        page.later, page.later_command = found.long, found.long_command
    elif found.long is not None:
        page.long, page.long_command = found.long, found.long_command
        page.later, page.later_command = None, ""
    else:
        page.machine, page.command, page.rows = found.machine, found.command, found.rows
        page.short, page.note = found.short or page.short, ""
    path.write_bytes(msgspec.json.encode(page) + b"\n")
    path.with_suffix(".md").write_text(report.text(page, _PICTURE, _LATER), encoding="utf-8")
    for shown, picture in ((page.long or page.short, _PICTURE), (page.later, _LATER)):
        if shown is None:
            (_RESULTS / picture).unlink(missing_ok=True)
        else:
            draw(shown, _RESULTS / picture)


if __name__ == "__main__":
    main()
