"""Lock files: each line one exact version with its files' sums, direct pins among them, nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

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


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", PROJECT / "requirements" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_locked_version_has_the_sums_of_its_files(audit: ModuleType) -> None:
    assert sorted(audit.LOCKS.values()) == LOCKS
    for name, lock in audit.LOCKS.items():
        sums = audit.pinned(audit.SUMS / f"{name}.txt")
        locked = {f"{package}=={version}" for package, version in pins(lock).items()}
        assert {f"{normal(release.partition('==')[0])}=={release.partition('==')[2]}" for release in sums} == locked
        assert all(found and all(re.fullmatch("[0-9a-f]{64}", one) for one in found) for found in sums.values())


@pytest.mark.parametrize(
    ("wheel", "fits"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("a-1-cp312-cp312-manylinux2014_aarch64.manylinux_2_17_aarch64.whl", True),
        ("a-1-cp39-abi3-manylinux_2_28_x86_64.whl", True),
        ("a-1-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp313-abi3-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp311-cp311-win_amd64.whl", False),
        ("a-1-cp311-cp311-macosx_11_0_arm64.whl", False),
        ("a-1-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", False),
        ("no wheel.whl", False),
    ],
)
def test_the_sums_are_those_of_wheels_that_are_installed_here(wheel: str, fits: bool, audit: ModuleType) -> None:
    assert audit.fits(wheel) is fits


def test_a_release_that_changed_after_it_was_locked_is_named(audit: ModuleType, tmp_path: Path) -> None:
    ours = {"a==1": {"0" * 64, "1" * 64}, "b==2": {"2" * 64}}
    path = tmp_path / "one.txt"
    path.write_text(audit.text_of(ours), encoding="utf-8")
    assert audit.pinned(path) == ours
    assert audit.differences(ours, ours) == []
    assert audit.differences(ours, {"a==1": {"0" * 64}, "b==2": {"2" * 64}}) == []
    changed, gone = audit.differences(ours, {"a==1": {"0" * 64, "3" * 64}})
    assert changed.startswith("a==1: 1 file(s) offered")
    assert gone.startswith("b==2: pinned")
