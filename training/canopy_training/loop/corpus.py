"""The pooled corpus: all items of the data files in collections of their own, indexed once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Final

from canopy_backend.errors import TrainingError
from canopy_backend.items import Item
from canopy_backend.tree import content_hash
from canopy_client.clients import CanopyClient
from canopy_client.ingestion import ingest
from canopy_client.jobs import EncoderInfo
from canopy_client.settings import Settings
from canopy_milvus import Corpus
from canopy_training.data import Question

#: Start of the names of pooled corpora, so that none is taken for somebody's own.
PREFIX: Final = "evaluate"


def pool(questions: Iterable[Question]) -> list[Item]:
    """The items of all questions, one a time each, in order of appearance.

    Raises:
        TrainingError: One id names two contents; in one corpus it can only be one item.
    """
    items: dict[str, Item] = {}
    hashes: dict[str, bytes] = {}
    for question in questions:
        for item in question.items:
            held = items.setdefault(item.id, item)
            if held is item:
                continue
            before = hashes.setdefault(item.id, content_hash(held))
            if content_hash(item) != before:
                raise TrainingError(
                    f"question {question.id!r:.80}: its item {item.id!r:.80} is another one than an earlier item of "
                    "that id; pooled items need ids of their own"
                )
    return list(items.values())


def corpus_name(items: Iterable[Item], revision: str) -> str:
    """The name of the corpus that holds exactly these items as this encoder made them."""
    digest = hashlib.blake2b(revision.encode(), digest_size=6)
    for name, content in sorted((item.id, content_hash(item)) for item in items):
        digest.update(f"{len(name)} {name}".encode() + content)
    return f"{PREFIX}_{digest.hexdigest()}"


def prepare(
    client: CanopyClient,
    settings: Settings,
    items: list[Item],
    *,
    progress: Callable[[int, int], None] = lambda indexed, unchanged: None,
) -> tuple[str, EncoderInfo]:
    """Index what is not indexed yet.

    Args:
        client: The evidence server.
        settings: Say where Milvus is; the corpus has a name of its own there, whatever ``settings.corpus`` says.
        items: The pooled items.
        progress: Called after each batch with the items indexed and unchanged so far.

    Returns:
        The corpus's name, and the encoder that it was made by.

    Raises:
        InvalidItem: An item is refused.
        ServerUnavailable: Server or store do not answer.
    """
    encoder = client.encoder()
    name = corpus_name(items, encoder.revision)
    modalities = tuple(dict.fromkeys(item.modality for item in items))
    with Corpus.open(
        settings.milvus(),
        name,
        revision=encoder.revision,
        dimension=encoder.dimension,
        token=settings.milvus_token or None,
        modalities=modalities,
        create=True,
    ) as corpus:
        # The name holds every content: as many items as there should be are the right ones.
        if corpus.count() != len(items):
            ingest(client, corpus, items, progress=progress)
    return name, encoder
