"""The page of results, ``docs/results/fuzz.md``, written from what the runs left in ``docs/results/fuzz.json``."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from canopy_fuzz.child import LONGEST_S
from canopy_fuzz.kinds import Target
from canopy_fuzz.parent import GROWTH_BYTES, PLAIN, PLAIN_DEAR, Outcome
from canopy_fuzz.targets import TARGETS

_RESULTS: Final = Path(__file__).resolve().parents[3] / "docs" / "results"
PAGE: Final = _RESULTS / "fuzz.md"
FIGURES: Final = _RESULTS / "fuzz.json"
#: Libraries whose decoders are run through, beside our own.
_LIBRARIES: Final = ("atheris", "msgspec", "numpy", "pillow", "av", "webvtt-py", "sentencex", "httpx", "protobuf")

_HEAD: Final = """# Fuzzing

What reads bytes from outside, run by coverage-guided fuzzing (atheris, which is libFuzzer for Python). Each target is a
decoder in a process of its own. Only the project's own errors may come out of it, those that its documentation names;
what is taken has to hold its laws (written back the same, spans that cover, nothing outside of a list of hosts). A
single input may take {longest:g} s of the processor, and memory may gain {growth} MiB over the second half of {plain:,}
further executions ({dear:,} of pictures and clips) without instrumentation; what glibc keeps of freed memory is none.

Written by `make fuzz` (`python -m canopy_fuzz --write`; `make fuzz RUNS=10000` for a short one, which writes nothing).
Seed {seed}; {libraries}.

| target | decodes | runs | taken | s | a second | features | slowest ms | MiB warm | MiB end | MiB plain | findings |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
"""
_FOOT: Final = """
*taken*: inputs that were valid; the others were refused by name. *s*: seconds of one core, instrumented. *features*:
what libFuzzer counts as new behaviour: edges of the project's own code and of webvtt, and comparisons. Native code of
libraries is run and not instrumented. *MiB warm*, *MiB end*: resident memory after the first tenth of the run and at
its end, with libFuzzer's own tables and inputs; atheris 3.0 never frees the result of a comparison of arrays that it
instruments (0.2 KB each), which is what the targets with arrays gain. *MiB plain*: gained without instrumentation.
With 6,000 executions and freed memory counted, pictures had gained 16 MiB, and with 24,000 clips 23 MiB; the measure
was changed after that. The same 4,000 clips again and again still gain 0.2 KB each, in native code that was not found,
while the number of Python's own blocks stays.
Pictures and clips are given {media} s of a whole run; `--seconds` gives them more, up to the same number of executions.
Each row is the last run of its target.

Targets and seeds are in `tests/fuzz`; `tests/unit/fuzz` runs each of them some hundred times in every test run, and
what fuzzing found stands as tests of the right values beside the code that it was found in.
"""


def line(outcome: Outcome) -> str:
    """A row of the table."""
    mib = 1 << 20
    rate = outcome.executions / outcome.cpu_s if outcome.cpu_s else 0
    cells = (
        outcome.name,
        outcome.decodes,
        f"{outcome.executions:,}",
        f"{outcome.taken / outcome.executions:.1%}" if outcome.executions else "–",
        f"{outcome.cpu_s:.0f}",
        f"{rate:,.0f}",
        f"{outcome.features:,}",
        f"{outcome.slowest_s * 1000:.1f}",
        f"{outcome.warm_bytes / mib:.0f}",
        f"{outcome.end_bytes / mib:.0f}",
        f"{max(0, outcome.gained_bytes) / mib:.1f}",
        outcome.finding.replace("|", "\\|") or "none",
    )
    return f"| {' | '.join(cells)} |"


def keep(outcome: Outcome, runs: int, seed: int) -> None:
    """Put one run's figures beside those of the other targets."""
    kept = read()
    libraries = {name: version(name) for name in _LIBRARIES}
    kept[outcome.name] = {**asdict(outcome), "runs": runs, "seed": seed, "libraries": libraries}
    FIGURES.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def write() -> None:
    """Write the page from what is kept, targets in their own order."""
    PAGE.write_text(text(read(), TARGETS), encoding="utf-8")


def text(kept: dict[str, Any], targets: dict[str, Target]) -> str:
    """The page of these figures."""
    rows = [kept[name] for name in targets if name in kept]
    fields = Outcome.__dataclass_fields__
    lines = [line(Outcome(**{name: row[name] for name in fields})) for row in rows]
    versions: dict[str, str] = {}
    for row in rows:
        versions |= row["libraries"]
    seeds = sorted({row["seed"] for row in rows})
    head = _HEAD.format(
        longest=LONGEST_S,
        growth=GROWTH_BYTES >> 20,
        plain=PLAIN,
        dear=PLAIN_DEAR,
        seed=", ".join(map(str, seeds)),
        libraries=", ".join(f"{name} {number}" for name, number in versions.items()),
    )
    missing = [name for name in targets if name not in kept]
    if missing:
        lines.append(f"\nNot run yet: {', '.join(missing)}.")
    media = next(target.seconds for target in targets.values() if target.seconds)
    return head + "\n".join(lines) + "\n" + _FOOT.format(media=media)


def read() -> dict[str, Any]:
    """The figures of the last run of each target, by name; empty where none was kept."""
    try:
        found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found
