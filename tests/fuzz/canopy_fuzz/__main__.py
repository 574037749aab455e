"""``python -m canopy_fuzz``: run targets, print what they did, and write the page where asked for."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Final

from canopy_fuzz import parent, report
from canopy_fuzz.targets import TARGETS

ROOT: Final = Path(__file__).resolve().parents[3]
#: Executions of a target; those of pictures and clips run by time.
RUNS: Final = 1_000_000


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m canopy_fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all of them if not given")
    parser.add_argument("--runs", type=int, default=RUNS, help="executions of a target (default: %(default)s)")
    parser.add_argument("--seconds", type=int, help="seconds of a target that runs by time (default: its own)")
    parser.add_argument("--seed", type=int, default=1, help="libFuzzer's seed (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".canopy" / "fuzz", help="corpora, logs, findings")
    parser.add_argument("--write", action="store_true", help=f"put the figures into {report.PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - TARGETS.keys()):
        parser.error(f"no target {unknown[0]!r}; known are {', '.join(TARGETS)}")
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed: make fuzz, or pip install --requirement requirements/fuzz.txt")
    given.folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for name in given.names or TARGETS:
        outcome = parent.run(TARGETS[name], given.folder, runs=given.runs, seed=given.seed, seconds=given.seconds)
        outcomes.append(outcome)
        print(report.line(outcome), flush=True)
        if given.write:
            report.keep(outcome, given.runs, given.seed)
    if given.write:
        report.write()
    return 1 if parent.failed(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
