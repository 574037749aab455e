"""``python requirements/audit.py [--write]``: every locked version among the known vulnerabilities, and by its sums.

Advisories are asked of pip-audit; where they cannot be reached, the sums alone decide, and it says so. Sums are those
of every file of a locked version that Linux (glibc) installs on Python 3.11 or 3.12, as pip takes them with
``--require-hashes``. A file that is offered now and was not when the sums were written is an error: a release that
changed after it was locked is how a stolen account looks. ``--write`` takes what is offered now.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

ROOT: Final = Path(__file__).resolve().parents[1]
SUMS: Final = ROOT / "requirements" / "hashes"
LOCKS: Final = {
    **{path.stem: path for path in sorted((ROOT / "requirements" / "locks").glob("*.txt"))},
    "peers": ROOT / "benchmarks" / "peers" / "lock.txt",
    "infinity": ROOT / "benchmarks" / "peers" / "infinity-lock.txt",
}
_MACHINES: Final = ("x86_64", "aarch64")
_PYTHONS: Final = (11, 12)
_LIMIT_S: Final = 600

#: Sums by the name and version of a release.
Sums = dict[str, set[str]]


def main() -> int:
    """The command; 1 where a version is vulnerable or its files are not those that were pinned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="take the sums that are offered now")
    write = parser.parse_args().write
    wrong = False
    for name, lock in LOCKS.items():
        offers = offered(lock)
        if write:
            SUMS.mkdir(exist_ok=True)
            (SUMS / f"{name}.txt").write_text(text_of(offers), encoding="utf-8")
        changes = differences(pinned(SUMS / f"{name}.txt"), offers)
        found, unknown = advisories(lock)
        told = "advisories reached" if not unknown else f"advisories of {unknown} not reached: their sums alone decide"
        print(f"{lock.relative_to(ROOT)}: {len(offers)} versions; {told}")
        for line in (*changes, *found):
            print(f"  {line}")
        wrong |= bool(changes or found)
    return int(wrong)


def offered(lock: Path) -> Sums:
    """What the index offers of each release of a lock file.

    Raises:
        subprocess.CalledProcessError: The index lacks a release, or does not answer.
    """
    command = ["uv", "pip", "compile", "--quiet", "--no-deps", "--generate-hashes", "--format", "pylock.toml"]
    command += ["--python-version", "3.11.7", str(lock)]
    done = subprocess.run(
        [sys.executable, "-m", *command], check=True, stdout=subprocess.PIPE, text=True, timeout=_LIMIT_S
    )
    return {
        f"{one['name']}=={one['version']}": {file["hashes"]["sha256"] for file in _files(one)}
        for one in tomllib.loads(done.stdout)["packages"]
    }


def _files(release: dict[str, Any]) -> list[dict[str, Any]]:
    """The wheels that are installed here; the sources where there is none."""
    wheels = [one for one in release.get("wheels", ()) if fits(urlsplit(one["url"]).path.rpartition("/")[2])]
    return wheels or [release["sdist"]]


def fits(wheel: str) -> bool:
    """Whether Linux on one of our machines installs a wheel of this name on one of our Pythons."""
    try:
        tags = parse_wheel_filename(wheel)[3]
    except InvalidWheelFilename:
        return False
    return any(
        (
            tag.platform == "any"
            or (tag.platform.startswith(("linux", "manylinux")) and tag.platform.endswith(_MACHINES))
        )
        and (tag.interpreter.startswith("py3") or _minor(tag.interpreter, stable=tag.abi == "abi3"))
        for tag in tags
    )


def _minor(interpreter: str, *, stable: bool) -> bool:
    """Whether CPython of this tag is ours: the same, or with the stable interface no newer."""
    minor = interpreter.removeprefix("cp3")
    if not minor.isdecimal() or interpreter == minor:
        return False
    return int(minor) <= max(_PYTHONS) if stable else int(minor) in _PYTHONS


def text_of(sums: Sums) -> str:
    """Sums as pip reads them."""
    return "".join(
        " \\\n    ".join([release, *(f"--hash=sha256:{one}" for one in sorted(sums[release]))]) + "\n"
        for release in sorted(sums)
    )


def pinned(path: Path) -> Sums:
    """The sums of a file of ours."""
    found: Sums = {}
    for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        release, *sums = line.split()
        found[release] = {one.removeprefix("--hash=sha256:") for one in sums}
    return found


def differences(ours: Sums, offers: Sums) -> list[str]:
    """What is offered and was not pinned, and what was pinned and is gone from the lock file."""
    told = [
        f"{release}: {len(more)} file(s) offered that were not there when it was pinned; look at them, then --write"
        for release in sorted(offers)
        if (more := offers[release] - ours.get(release, set()))
    ]
    return told + [f"{release}: pinned, and in no lock; --write" for release in sorted(ours.keys() - offers.keys())]


def advisories(lock: Path) -> tuple[list[str], int]:
    """Known vulnerabilities of a lock's versions, and of how many versions nothing could be learnt."""
    command = ["pip_audit", "--requirement", str(lock), "--no-deps", "--disable-pip", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--progress-spinner", "off"],
        check=False,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )
    try:
        audited = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return [], len(pinned_names(lock))
    found = [
        f"{one['name']}=={one['version']}: {fault['id']}, mended in {', '.join(fault['fix_versions']) or 'no release'}"
        for one in audited
        for fault in one.get("vulns", ())
    ]
    return found, sum("skip_reason" in one for one in audited)


def pinned_names(lock: Path) -> list[str]:
    """Names in a lock file."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    return [line.partition("==")[0].strip() for line in lines if "==" in line and line[0] != "#"]


if __name__ == "__main__":
    sys.exit(main())
