"""Items from files into the collections: bounded batches, unchanged items skipped, safe to run again at any point."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

import msgspec

from canopy_backend.errors import InvalidItem, LimitExceeded
from canopy_backend.items import Item
from canopy_client.clients import CanopyClient
from canopy_client.status import placeless
from canopy_milvus import Corpus

#: Items that are in memory together, with their trees; few, so that progress shows and a kill loses little.
BATCH: Final = 16

#: Seconds that a batch may take in the server; long items on a busy machine need more than a question does.
INDEX_DEADLINE_S: Final = 600.0


class IngestionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did.

    Attributes:
        items: Items read.
        indexed: Items that were new or had changed, and are stored now.
        unchanged: Items that were stored already.
        seconds: Time in all.
    """

    items: int
    indexed: int
    unchanged: int
    seconds: float


def ingest(
    client: CanopyClient,
    corpus: Corpus,
    items: Iterable[Item],
    *,
    progress: Callable[[int, int], None] = lambda indexed, unchanged: None,
) -> IngestionReport:
    """Index items and store them; a batch is stored whole before the next is read.

    Args:
        client: Makes trees and vectors.
        corpus: Where they go.
        items: Read as they are needed.
        progress: Called after each batch with the items indexed and unchanged so far.

    Raises:
        InvalidItem: An item is refused; it is named by its id, which begins with its file's path.
        LimitExceeded: An item is over a limit of the server or the store.
        ServerUnavailable: Server or store do not answer.
    """
    started = time.monotonic()
    indexed = unchanged = 0
    source = iter(items)
    while batch := list(islice(source, BATCH)):
        stored = corpus.unchanged(batch)
        changed = [item for item in batch if item.id not in stored]
        try:
            corpus.upsert(client.index(changed, deadline_s=INDEX_DEADLINE_S))
        except InvalidItem as error:
            # Its index counts this batch, which the caller does not know.
            raise InvalidItem(error.reason, item_id=error.item_id, field=error.field) from None
        except LimitExceeded as error:
            raise placeless(error) from None
        indexed += len(changed)
        unchanged += len(stored)
        progress(indexed, unchanged)
    seconds = time.monotonic() - started
    return IngestionReport(items=indexed + unchanged, indexed=indexed, unchanged=unchanged, seconds=seconds)
