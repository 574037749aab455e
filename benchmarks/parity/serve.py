"""A server of its own for an encoder that sees pixels, beside whatever else runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from canopy_backend.manifest import Precision
from canopy_local.isolation import isolated
from canopy_local.settings import StackSettings
from canopy_local.stack import running

#: What an export puts into a repository.
_EXPORTED = ("model.onnx*", "manifest.json", "qwen3vl.json", "tokenizer.json")


def empty_repository(settings: StackSettings, folder: Path) -> Path:
    """A copy of the model repository without exported encoders."""
    target: Path = shutil.copytree(settings.model_repository, folder, ignore=shutil.ignore_patterns(*_EXPORTED))
    return target


@contextmanager
def serving(
    settings: StackSettings, folder: Path, model: Path, adapter: Path | None, precision: Precision
) -> Iterator[StackSettings]:
    """An evidence server of the embedded profile; its settings say where it listens and what it serves.

    Args:
        settings: Whose environments and models are used.
        folder: For its repository and its home; must not have either.
        model: Model folder.
        adapter: Adapter folder, or none.
        precision: Of all graphs.
    """
    own = msgspec.structs.replace(
        isolated(settings, folder / "home"),
        model_repository=empty_repository(settings, folder / "repository"),
        model=model,
        adapter=adapter,
        precision=precision,
    )
    with running(own, servers=["evidence"]):
        yield own
