"""The arrows between rooms, read off the imports: each package knows only what stands below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "canopy_backend": ROOT / "python_backend/canopy_backend",
    "canopy_milvus": ROOT / "milvus/canopy_milvus",
    "canopy_client": ROOT / "client/canopy_client",
    "canopy_export": ROOT / "export/canopy_export",
    "canopy_local": ROOT / "local/canopy_local",
    "canopy_training": ROOT / "training/canopy_training",
}
ALLOWED = {
    "canopy_backend": set(),
    "canopy_milvus": {"canopy_backend"},
    "canopy_client": {"canopy_backend", "canopy_milvus"},
    "canopy_export": {"canopy_backend", "canopy_client"},
    "canopy_local": {"canopy_backend", "canopy_milvus", "canopy_client", "canopy_export"},
    "canopy_training": {"canopy_backend", "canopy_client", "canopy_export", "canopy_milvus"},
}
#: The command mounts rooms above it by name, when a sub-command runs, and imports none of them by itself.
SERVER_MODULES = {"triton_python_backend_utils", "tritonclient", "grpc", "pymilvus", "vllm", "torch", "transformers"}


def imports(path: Path) -> set[str]:
    """Top-level names of everything that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def files(package: str) -> list[Path]:
    found = sorted(PACKAGES[package].rglob("*.py"))
    assert found, f"{package} has no files"
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_stands_below_it(package: str) -> None:
    above = set(PACKAGES) - ALLOWED[package] - {package}
    wrong = {str(path.relative_to(ROOT)): sorted(imports(path) & above) for path in files(package)}
    assert {path: names for path, names in wrong.items() if names} == {}


def test_the_method_imports_no_server() -> None:
    adapters = PACKAGES["canopy_backend"] / "triton"
    method = [path for path in files("canopy_backend") if adapters not in path.parents]
    wrong = {path.name: sorted(imports(path) & SERVER_MODULES) for path in method}
    assert {name: names for name, names in wrong.items() if names} == {}


def test_no_package_shadows_the_milvus_distribution() -> None:
    assert not (ROOT / "milvus" / "__init__.py").exists()


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for package in PACKAGES
        for path in files(package)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}
