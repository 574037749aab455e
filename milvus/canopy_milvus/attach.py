"""Finding, making and publishing the collections of a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from canopy_backend.errors import RetrievalError
from canopy_backend.items import Modality
from canopy_milvus.connection import Connection
from canopy_milvus.schema import DenseIndex, alias_of, check_collection, collection_of, definition


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection that is open.

    Attributes:
        target: Name to call it by: the alias of the published version, or a version's own.
        index: Index of its dense vectors.
        words: Whether words are indexed.
    """

    target: str
    index: DenseIndex
    words: bool


@dataclass(frozen=True, slots=True)
class Opening:
    """What to open.

    Attributes:
        corpus: The corpus's name.
        version: A version by number, or ``None`` for the published one.
        revision: Encoder revision that the collections must have.
        dimension: Length that their vectors must have.
        create: Index of what is made where it is missing; ``None`` to make nothing.
    """

    corpus: str
    version: int | None
    revision: str
    dimension: int
    create: DenseIndex | None

    def attach(
        self, connection: Connection, modalities: Sequence[Modality], until: float
    ) -> dict[Modality, Collection]:
        """Open the collections of ``modalities`` side by side, since a server takes seconds to make one.

        Raises:
            RetrievalError: None of them is there.
            EncoderMismatch: One was indexed by another encoder.
        """
        with ThreadPoolExecutor(len(modalities)) as pool:
            found = list(pool.map(lambda one: self._attach_one(connection, one, until), modalities))
        opened = {one: collection for one, collection in zip(modalities, found, strict=True) if collection}
        if not opened:
            version = "" if self.version is None else f", version {self.version},"
            raise RetrievalError(f"there is no corpus {self.corpus!r}{version} at {connection.address}; index it first")
        return opened

    def publish(self, connection: Connection, modality: Modality, version: int, until: float) -> None:
        """Point the alias of ``modality`` at a version; searches through it go on meanwhile."""
        alias = alias_of(self.corpus, modality)
        known = connection.call("has_collection", alias, until=until)
        method = "alter_alias" if known else "create_alias"
        connection.call(method, collection_of(self.corpus, modality, version), until=until, alias=alias)

    def _attach_one(self, connection: Connection, modality: Modality, until: float) -> Collection | None:
        target = alias_of(self.corpus, modality)
        if self.version is not None:
            target = collection_of(self.corpus, modality, self.version)
        if not connection.call("has_collection", target, until=until):
            if self.create is None:
                return None
            self._make(connection, modality, self.create, until)
        description = connection.call("describe_collection", target, until=until)
        index, words = check_collection(
            description, connection.profile, dimension=self.dimension, revision=self.revision
        )
        if "Loaded" not in str(connection.call("get_load_state", target, until=until)["state"]).split():
            connection.call("load_collection", target, until=until)
        return Collection(target, index, words)

    def _make(self, connection: Connection, modality: Modality, index: DenseIndex, until: float) -> None:
        """Make a collection, and its alias unless a version was asked for; either may be left from a run cut short."""
        version = self.version or 1
        collection = collection_of(self.corpus, modality, version)
        if not connection.call("has_collection", collection, until=until):
            arguments = definition(connection.profile, dimension=self.dimension, revision=self.revision, index=index)
            try:
                connection.call("create_collection", collection, until=until, **arguments)
            except RetrievalError:
                # Another process may have made it in between; then it is there now.
                if not connection.call("has_collection", collection, until=until):
                    raise
        if self.version is None:
            self.publish(connection, modality, version, until)
