"""Lock files: every line one exact version, each package once, direct pins among them, nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from canopy_local.settings import PROJECT

LOCKS = sorted([*(PROJECT / "requirements" / "locks").glob("*.txt"), *(PROJECT / "benchmarks").rglob("*lock.txt")])
LINE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[0-9][A-Za-z0-9.!]*)")
#: The requirements that each lock is the constraint of; those that are installed over it without dependencies.
PINNED_ALONE = {("server", "webvtt-py")}  # it depends on nothing, and a changed lock builds every server again
DIRECT = sorted((PROJECT / "requirements").glob("*.txt"))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    found = [
        LINE.fullmatch(line.partition("[")[0] + line.partition("]")[2]) for line in lines if line[:1] not in ("", "-")
    ]
    assert all(found), f"{path}: a line that is no exact version"
    return {normal(one["name"]): one["version"] for one in found if one}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_every_line_of_a_lock_is_one_exact_version(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and line[0] != "#"]
    assert lines
    for line in lines:
        assert LINE.fullmatch(line.strip()), f"{path}: {line}"
    names = [normal(line.partition("==")[0]) for line in lines]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", DIRECT, ids=lambda path: path.name)
def test_direct_requirements_are_in_their_lock(path: Path) -> None:
    lock = re.search(r"^-c (\S+)$", path.read_text(encoding="utf-8"), re.M)
    if lock is None:
        assert path.stem.endswith("-no-deps")
        return
    locked = pins(path.parent / lock[1])
    for name, version in pins(path).items():
        assert locked.get(name) == version or (path.stem, name) in PINNED_ALONE, name


def test_no_requirement_comes_from_an_address_or_an_index_of_its_own() -> None:
    for path in [*LOCKS, *DIRECT, *(PROJECT / "benchmarks").rglob("requirements.txt")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"://|--(extra-)?index-url|--find-links|--trusted-host|^-e |git\+", text, re.M), path
