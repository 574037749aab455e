"""Runs targets one after the other, each in a process of its own, and reads what it did."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from canopy_fuzz.child import LONGEST_S, WARM_SHARE
from canopy_fuzz.kinds import Target

#: Marks that a run leaves.
_MARKS: Final = 20
#: Executions without instrumentation, and those of targets that run by time.
PLAIN: Final = 50_000
PLAIN_DEAR: Final = 24_000
#: Resident memory that these may gain after they are warm.
GROWTH_BYTES: Final = 8 << 20
_STATUS: Final = re.compile(r"#(\d+)\s+(?:DONE|NEW|REDUCE|pulse|INITED)\s.*?ft: (\d+) corp: (\d+)")
_SIGPROF: Final = -27
#: libFuzzer's own bound counts the time of the day, in which a machine may be busy with something else.
_NEVER_S: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a target did.

    Attributes:
        name: The target.
        decodes: What it reads.
        executions: Inputs that were run.
        taken: How many of them were taken, not refused.
        cpu_s: Seconds of the processor.
        features: Coverage features that libFuzzer counted.
        corpus: Inputs that it kept, each for something new.
        slowest_s: Seconds of the slowest input.
        warm_bytes: Resident memory after the first tenth.
        end_bytes: Resident memory at the end.
        gained_bytes: What memory gained in the executions without instrumentation.
        finding: What was wrong, and where the input lies; empty for nothing.
    """

    name: str
    decodes: str
    executions: int
    taken: int
    cpu_s: float
    features: int
    corpus: int
    slowest_s: float
    warm_bytes: int
    end_bytes: int
    gained_bytes: int
    finding: str


def run(target: Target, folder: Path, *, runs: int, seed: int, seconds: int | None = None) -> Outcome:
    """Run one target.

    Args:
        target: The target.
        folder: Corpus, marks, log and findings go here.
        runs: Executions at most.
        seed: libFuzzer's seed.
        seconds: How long a target runs that runs by time; its own where not given.
    """
    corpus = folder / "corpus" / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    for place, data in enumerate(target.seeds()):
        (corpus / f"seed-{place}").write_bytes(data)
    words = folder / f"{target.name}.dict"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words), encoding="ascii")
    span = None if target.seconds is None else (seconds or target.seconds)
    every = max(1, runs // _MARKS) if span is None else 100
    bounds = [f"-runs={runs}"] if span is None else [f"-runs={runs}", f"-max_total_time={span}"]
    flags = [
        *bounds, f"-seed={seed}", f"-dict={words}", f"-timeout={_NEVER_S}", "-rss_limit_mb=4096",
        "-print_final_stats=1", f"-artifact_prefix={folder}/{target.name}-", "-len_control=0",
        "-report_slow_units=1000", str(corpus),
    ]  # fmt: skip
    command = [sys.executable, "-m", "canopy_fuzz.child", target.name, str(folder), str(every), *flags]
    log = folder / f"{target.name}.log"
    with log.open("wb") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    gained = 0 if code else _gained(target, folder)  # a finding would end these too
    return _outcome(target, folder, code, log.read_text(encoding="utf-8", errors="replace"), gained)


def _gained(target: Target, folder: Path) -> int:
    """Bytes that memory gains where nothing is instrumented."""
    count = PLAIN if target.seconds is None else PLAIN_DEAR
    command = [sys.executable, "-m", "canopy_fuzz.child", target.name, str(folder), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return int(done.stdout.split()[-1])


def _outcome(target: Target, folder: Path, code: int, log: str, gained: int) -> Outcome:
    marks = [json.loads(line) for line in (folder / f"{target.name}.marks").read_text("ascii").splitlines()]
    last: dict[str, Any] = marks[-1] if marks else dict.fromkeys(
        ("executions", "taken", "cpu_s", "slowest_s", "rss_bytes"), 0
    )  # fmt: skip
    warm = next((one for one in marks if one["executions"] >= WARM_SHARE * last["executions"]), last)
    status = _STATUS.findall(log)
    return Outcome(
        name=target.name,
        decodes=target.decodes,
        executions=last["executions"],
        taken=last["taken"],
        cpu_s=last["cpu_s"],
        features=int(status[-1][1]) if status else 0,
        corpus=int(status[-1][2]) if status else 0,
        slowest_s=last["slowest_s"],
        warm_bytes=warm["rss_bytes"],
        end_bytes=last["rss_bytes"],
        gained_bytes=gained,
        finding=_finding(target, folder, code, log, gained),
    )


def _finding(target: Target, folder: Path, code: int, log: str, gained: int) -> str:
    if code == _SIGPROF:
        now = (folder / f"{target.name}.now").read_bytes()
        kept = folder / f"{target.name}-hang"
        kept.write_bytes(now[4 : 4 + int.from_bytes(now[:4], "little")])
        return f"more than {LONGEST_S:g} s: {kept}"
    if code:
        raised = [
            line for line in log.splitlines() if re.match(r"^[A-Za-z_.]*(Error|Exception|Interrupt)\b", line.strip())
        ]
        files = sorted(str(one) for one in folder.glob(f"{target.name}-*-*"))
        told = raised[0].strip()[:160] if raised else "see its log"
        return f"exit code {code}: {told} ({', '.join(files) or 'no input kept'})"
    if gained > GROWTH_BYTES:
        return f"memory grew by {gained >> 20} MiB"
    return ""


def _escaped(word: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02X}" for byte in word)


def failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those with a finding."""
    return [one for one in outcomes if one.finding]
