"""One target in a process of its own: ``python -m canopy_fuzz.child NAME FOLDER EVERY [libFuzzer's flags]``.

With flags it runs under atheris. Without any it runs ``EVERY`` mutations of what was kept, and nothing is instrumented:
what memory is gained then is the decoder's own.

What was run is written to ``FOLDER/NAME.marks``, a JSON line at each mark: executions, how many of them were taken,
seconds of the processor, its slowest input, resident memory. The input that is being run stands in ``FOLDER/NAME.now``,
so that one which never ends is known after the kernel has ended it.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from canopy_fuzz.mutations import mutations

#: Most seconds of the processor that one input may take; a stopped or busy machine does not count.
LONGEST_S: Final = 10.0
#: Executions until memory is looked at first, as a share of a run's: caches are full by then.
WARM_SHARE: Final = 0.1
_PACKAGES: Final = ["canopy_backend", "canopy_client", "canopy_export", "canopy_milvus", "canopy_training", "webvtt"]


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * mmap.PAGESIZE


class Watched:
    """A target's execution with its bound of time and its marks."""

    def __init__(self, execute: Callable[[bytes], bool], folder: Path, name: str, every: int, longest: int) -> None:
        self._execute = execute
        self._every = every
        self._count = self._taken = 0
        self._slowest = 0.0
        self._marks: IO[str] = (folder / f"{name}.marks").open("w", encoding="ascii")
        with (folder / f"{name}.now").open("w+b") as file:
            file.truncate(longest + 4)
            self._now = mmap.mmap(file.fileno(), longest + 4)

    def __call__(self, data: bytes) -> None:
        """Run one input."""
        self._now[: len(data) + 4] = len(data).to_bytes(4, "little") + data
        # Ends the process, also inside native code, where an exception would wait for ever.
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        started = time.perf_counter()
        self._taken += self._execute(data)
        seconds = time.perf_counter() - started
        if seconds > self._slowest:
            # Some times more: a busy machine makes any input slow, and the clock of the processor is too coarse.
            for _ in range(5):
                started = time.perf_counter()
                self._execute(data)
                seconds = min(seconds, time.perf_counter() - started)
            self._slowest = max(self._slowest, seconds)
        self._count += 1
        if self._count % self._every == 0:
            self.mark()

    def mark(self) -> None:
        """Write down where the run is."""
        seen = {
            "executions": self._count,
            "taken": self._taken,
            "cpu_s": round(time.process_time(), 3),
            "slowest_s": round(self._slowest, 6),
            "rss_bytes": resident_bytes(),
        }
        self._marks.write(json.dumps(seen) + "\n")
        self._marks.flush()


def plain(name: str, folder: Path, count: int) -> None:
    """Run mutations of a target's corpus without instrumentation, and print the bytes that memory gained once warm."""
    from canopy_fuzz.targets import TARGETS

    target = TARGETS[name]
    kept = [path.read_bytes() for path in sorted((folder / "corpus" / name).iterdir())]
    warm = 0
    for place, data in enumerate(mutations(target, count, kept)):
        target.execute(data)
        if place == count // 2:  # the libraries of pictures take what they need in steps
            warm = _held_bytes()
    print(_held_bytes() - warm)


def _held_bytes() -> int:
    """Resident memory without what was freed and glibc keeps for later, which decoders with threads scatter."""
    ctypes.CDLL(None).malloc_trim(0)
    return resident_bytes()


def main() -> None:
    """Run one target until libFuzzer's flags end it."""
    name, folder, every, *flags = sys.argv[1:]
    if not flags:
        plain(name, Path(folder), int(every))
        return
    import atheris

    with atheris.instrument_imports(include=_PACKAGES):
        from canopy_fuzz.targets import TARGETS
    target = TARGETS[name]
    watched: Any = Watched(target.execute, Path(folder), name, int(every), target.max_len)
    atheris.Setup([sys.argv[0], f"-max_len={target.max_len}", *flags], watched)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
