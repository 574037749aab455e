"""Items, their trees and their vectors in Milvus: ingestion and search over Lite, a server or a cluster.

The classes that talk to Milvus are imported when they are first used, since their driver takes a second to load and a
caller who only handles :class:`IndexedItem` needs none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from canopy_milvus.rows import Hit, IndexedItem

if TYPE_CHECKING:
    from canopy_milvus.aio import AsyncCorpus
    from canopy_milvus.corpus import Corpus

__all__ = ["AsyncCorpus", "Corpus", "Hit", "IndexedItem"]

_HOMES = {"AsyncCorpus": "canopy_milvus.aio", "Corpus": "canopy_milvus.corpus"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
