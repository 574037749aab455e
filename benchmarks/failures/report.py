"""The page: one row a fault, what the errors said, and the long run. Pure: from figures to text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from benchmarks.failures.calls import OUTCOMES
from benchmarks.failures.drills import Row
from benchmarks.failures.soak import FLAT, Soak

#: Different errors that the page shows for each fault.
_ERRORS: Final = 3


class Page(msgspec.Struct):
    """All figures of the page.

    Attributes:
        machine: On what the faults were tried.
        command: How.
        note: What else to know about how; empty for nothing.
        rows: The faults.
        short: The run that belongs to them.
        long: The long run, which has a command of its own.
        long_command: It.
        later: A shorter run after the long one, which does not take its place.
        later_command: Its command.
    """

    machine: str = ""
    command: str = ""
    rows: list[Row] = []
    short: Soak | None = None
    long: Soak | None = None
    long_command: str = ""
    later: Soak | None = None
    later_command: str = ""
    note: str = ""


def text(page: Page, picture: str, later: str = "") -> str:
    """The page in Markdown.

    Args:
        page: Its figures.
        picture: File of the long run's figure, beside the page.
        later: The same of the later, shorter run.
    """
    parts = [_HEAD]
    if page.rows:
        how = [f"- command: `{page.command}`", f"- machine: {page.machine}", *([f"- {page.note}"] if page.note else [])]
        parts += ["\n".join(how), _faults(page.rows), _errors(page.rows)]
    parts.append(_SOAK)
    for title, soak, command, figure in (
        ("In a row with the faults", page.short, page.command, "" if page.long else picture),
        ("Long", page.long, page.long_command, picture),
        ("Later, shorter", page.later, page.later_command, later),
    ):
        if soak is not None:
            parts.append(_soak(title, soak, command))
            parts += [f"![Memory, descriptors and latency over time]({figure})"] * bool(figure)
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Row]) -> str:
    """The faults as a Markdown table."""
    lines = [
        "| fault | sent | right | to rounding | retryable error | wrong | lost | seconds to recovery | started again |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        if row.skipped:
            lines.append(f"| {row.fault} | not run: {row.skipped} | | | | | | | |")
            continue
        counts = " | ".join(str(row.outcomes[outcome]) for outcome in OUTCOMES)
        recovery = "**never**" if row.recovery_s is None else f"{row.recovery_s:.1f}"
        lines.append(f"| {row.fault} | {row.sent} | {counts} | {recovery} | {len(row.restarts) or ''} |")
    return "\n".join(lines)


def _faults(rows: Sequence[Row]) -> str:
    return f"## Faults\n\n{table(rows)}\n\n{_READING}"


def _errors(rows: Sequence[Row]) -> str:
    lines = [
        "## What clients were told",
        "",
        "| fault | by kind of call | most frequent errors |",
        "| --- | --- | --- |",
    ]
    for row in rows:
        if row.skipped:
            continue
        kinds = "; ".join(
            f"{kind} " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
            for kind, counts in row.by_kind.items()
            if set(counts) - {"right", "rounded"}
        )
        seen = sorted(row.details.items(), key=lambda pair: -pair[1])[:_ERRORS]
        said = "<br>".join(f"{count} x {_cell(detail)}" for detail, count in seen)
        lines.append(f"| {row.fault} | {kinds or 'all right'} | {said} |")
    return "\n".join(lines)


def _cell(detail: str) -> str:
    return detail.replace("|", "\\|").replace("<", "&lt;")


def _soak(title: str, soak: Soak, command: str) -> str:
    counts = ", ".join(f"{soak.outcomes[outcome]} {outcome}" for outcome in OUTCOMES)
    changes = soak.changes()
    lines = [
        f"### {title}: {soak.minutes:g} minutes",
        "",
        f"`{command}`: {counts}. Aim: memory of every process within {100 * FLAT:.0f} %, no more descriptors: "
        f"**{'hit' if soak.passed else 'missed'}**.",
        "",
        "| process | MiB, first | MiB, last | change | descriptors, first | last |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, values in soak.memory.items():
        first, last = soak.ends(values)
        files = soak.ends(soak.descriptors[name]) if name in soak.descriptors else None
        told = f"{files[0]:.0f} | {files[1]:.0f}" if files else " | "
        lines.append(f"| {name} | {first:.1f} | {last:.1f} | {100 * changes[name]:+.1f} % | {told} |")
    lines += [
        "",
        "| call | calls, first | p50 / p95 / p99 ms | calls, last | p50 / p95 / p99 ms |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for kind, one in soak.first.items():
        last = soak.last[kind]
        lines.append(
            f"| {kind} | {one.calls} | {one.p50:.0f} / {one.p95:.0f} / {one.p99:.0f} "
            f"| {last.calls} | {last.p50:.0f} / {last.p95:.0f} / {last.p99:.0f} |"
        )
    return "\n".join(lines)


_HEAD: Final = """# Failures and soak

Written by `make test-failures` (`python -m benchmarks.failures --write`) and by `python -m benchmarks.failures --soak
MINUTES --write` for the long run. Real servers on loopback: Triton with its model processes, the critic's Triton with
vLLM, a Milvus server. Eight clients send at a steady pace: requests with trees (three clients), cold ones,
`embed_query`, `index`, whole questions without a language model, the critic. Each answer is compared, byte for byte,
with the one that the same call got before any fault."""

_SOAK: Final = """## Soak

The same load with nothing broken. The first fifth of a run is its warm-up; *first* is the tenth of the run after it,
*last* the last tenth, each by its median. `/dev/shm` is what the regions of both servers have allocated."""

_READING: Final = """*Right*: the recorded answer, byte for byte, within the call's deadline of 90 s, the client's own
attempts included. *To rounding*: the same answer, but for scores and vectors that differ by less than 2e-3: what a
batch computes depends a little on what else is in it, in the encoder's bfloat16 more than in float32. *Retryable*:
`ServerUnavailable` or `Overloaded` after those attempts. *Wrong*: another answer, or an error that does not say to send
again. *Lost*: no answer within the deadline. *Recovery* ends with the first right answer of the last kind of call to be
well again, from the beginning of the fault; a fault that lasts is in it.

Nothing but liveness starts servers again: one whose process has ended at once, one whose canary fails twice in a row,
two seconds apart, after that. The chart asks once a minute and three times, so there a dead model process is away for
up to three minutes more; readiness takes such a pod out of the service before."""
