"""A corpus: a collection a modality, ingested by upsert, searched through aliases."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Final, TypeVar

import numpy.typing as npt

from canopy_backend.errors import EncoderMismatch, InvalidRequest, LimitExceeded, RetrievalError
from canopy_backend.items import Item, Modality
from canopy_milvus import filters
from canopy_milvus.attach import Collection, Opening
from canopy_milvus.connection import Connection
from canopy_milvus.profile import Profile
from canopy_milvus.ranking import Candidate, fuse, merge
from canopy_milvus.rows import (
    MAX_ROW_BYTES,
    Hit,
    IndexedItem,
    Row,
    check_vector,
    decode_row,
    encode_row,
    item_payload,
)
from canopy_milvus.schema import MODALITIES, DenseIndex, check_name, search_parameters

T = TypeVar("T")

#: Most results of one search and most ids to leave out, Milvus's own bound.
MAX_RESULTS: Final = 16_384
_IDS_A_CALL: Final = 1024
_ITEMS_A_CALL: Final = 64
_ITEM_FIELDS: Final = ["item_id", "item", "tree", "tree_stored", "enc_rev"]


class Corpus:
    """Items of one corpus in Milvus. Made by :meth:`open`; safe to use from many threads; close it.

    Every method takes ``deadline_s``, the seconds that it may take (``upsert``: each of its calls), and raises
    :class:`ServerUnavailable`, :class:`DeadlineExceeded`, :class:`Overloaded` or :class:`RetrievalError` when Milvus
    does not answer, is too slow, limits the rate or refuses.

    Attributes:
        name: The corpus's name.
        revision: Encoder revision of its vectors.
        dimension: Their length.
    """

    def __init__(self, connection: Connection, opening: Opening, collections: dict[Modality, Collection]) -> None:
        self.name = opening.corpus
        self.revision = opening.revision
        self.dimension = opening.dimension
        self._opening = opening
        self._connection = connection
        self._open = collections

    @classmethod
    def open(
        cls,
        uri: str | None = None,
        name: str = "canopy",
        *,
        revision: str,
        dimension: int,
        token: str | None = None,
        create: bool = False,
        version: int | None = None,
        modalities: Sequence[Modality] = MODALITIES,
        index: DenseIndex = "FLAT",
        deadline_s: float = 60.0,
    ) -> Corpus:
        """Open a corpus.

        Args:
            uri: A folder (Milvus Lite) or an address such as ``http://localhost:19530``; ``MILVUS_URI`` by default.
            name: The corpus's name: letters, digits and underscores.
            revision: Revision of the encoder whose vectors go in and are searched with, 16 hex digits.
            dimension: Length of its vectors.
            token: ``user:password`` or a key; ``MILVUS_TOKEN`` by default.
            create: Make what is missing; a corpus that is whole is left as it is.
            version: A version by number, published or not; the published one by default.
            modalities: What to open or make.
            index: Index of the dense vectors of what is made.
            deadline_s: Seconds that opening may take.

        Raises:
            EncoderMismatch: The corpus was indexed by another encoder; names both.
            RetrievalError: There is no such corpus, another process has the folder open, or Milvus refused.
            ServerUnavailable: No server answers.
        """
        uri = uri or os.environ.get("MILVUS_URI", "")
        if not uri:
            raise InvalidRequest("no Milvus to open: give a folder or an address, or set MILVUS_URI")
        if dimension < 1 or (version is not None and version < 1) or not modalities:
            raise InvalidRequest("dimension and version start at 1, and a corpus has at least one modality")
        check_name(name)
        if "://" not in uri and not create and not os.path.exists(uri):
            raise RetrievalError(f"there is no corpus at {uri!r}; index something first")
        until = time.monotonic() + deadline_s
        opening = Opening(name, version, revision, dimension, index if create else None)
        connection = Connection(uri, token or os.environ.get("MILVUS_TOKEN", ""), until)
        try:
            return cls(connection, opening, opening.attach(connection, modalities, until))
        except BaseException:
            connection.close()
            raise

    @property
    def profile(self) -> Profile:
        """What the deployment can do."""
        return self._connection.profile

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """Modalities that this corpus has a collection for."""
        return tuple(self._open)

    def upsert(self, rows: Iterable[IndexedItem], *, batch: int = 256, deadline_s: float = 30.0) -> int:
        """Write items; one that is there already is replaced, so a run that was cut short is simply run again.

        Args:
            rows: Indexed items, read as they are needed.
            batch: Most rows of one call; fewer when they are large.
            deadline_s: Seconds that one call may take.

        Returns:
            Number of different ids written.

        Raises:
            InvalidItem: An item or its vector cannot be stored; what came before it in other calls is.
            LimitExceeded: An item is longer than Milvus can hold.
        """
        if not 1 <= batch <= MAX_RESULTS:
            raise InvalidRequest(f"batch {batch} is not between 1 and {MAX_RESULTS}")
        waiting: dict[Modality, dict[str, Row]] = {}
        written = 0
        for one in rows:
            modality = one.item.modality
            words = self._collection(modality).words
            row = encode_row(one, dimension=self.dimension, revision=self.revision, words=words)
            group = waiting.setdefault(modality, {})
            # Servers before 2.4 keep both of two equal keys in one call: the later one wins here.
            group.pop(row.id, None)
            if group and sum(other.size for other in group.values()) + row.size > MAX_ROW_BYTES:
                written += self._write(modality, group, deadline_s)
            group[row.id] = row
            if len(group) >= batch:
                written += self._write(modality, group, deadline_s)
        return written + sum(self._write(modality, group, deadline_s) for modality, group in waiting.items())

    def existing(
        self, ids: Iterable[str], *, read_your_writes: bool = True, deadline_s: float = 30.0
    ) -> dict[str, bytes]:
        """Content hashes of the ids that are stored, as :func:`canopy_backend.tree.content_hash` makes them."""
        fields = ["item_id", "content_hash"]
        found = self._by_id(ids, fields, _IDS_A_CALL, read_your_writes, deadline_s)
        return {row["item_id"]: bytes.fromhex(row["content_hash"]) for row in found}

    def unchanged(self, items: Iterable[Item], *, read_your_writes: bool = True, deadline_s: float = 30.0) -> set[str]:
        """Ids of the items that are stored exactly as given, source and address included: what indexing can skip."""
        given = {item.id: item_payload(item).decode() for item in items}
        fields = ["item_id", "item"]
        found = self._by_id(given, fields, _ITEMS_A_CALL, read_your_writes, deadline_s)
        return {row["item_id"] for row in found if "".join(row["item"]) == given[row["item_id"]]}

    def search(
        self,
        vector: npt.ArrayLike,
        k: int,
        *,
        modalities: Sequence[Modality] | None = None,
        exclude_ids: Iterable[str] = (),
        source: str | None = None,
        query_text: str | None = None,
        read_your_writes: bool = False,
        deadline_s: float = 10.0,
    ) -> list[Hit]:
        """The ``k`` best items over all modalities, best first, each with its tree.

        Args:
            vector: float32 ``[D]``, the query's vector.
            k: Most results.
            modalities: Search these only; those that the corpus lacks find nothing.
            exclude_ids: Ids to leave out.
            source: Only items of this source.
            query_text: Also search by words (BM25) and fuse the two lists by rank.
            read_your_writes: See everything written before this call, which a server may need some 0.2 s for.
            deadline_s: Seconds that the search may take.

        Raises:
            InvalidRequest: Vector, ``k`` or ``query_text`` are not usable.
            LimitExceeded: Too many results or ids to leave out.
            EncoderMismatch: Rows of another encoder came back: the corpus was replaced while it was open.
            RetrievalError: Words are not indexed here.
        """
        try:
            query = check_vector(vector, self.dimension)
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"query vector {error}") from None
        excluded = list(dict.fromkeys(exclude_ids))
        self._check_search(k, excluded, query_text)
        until = time.monotonic() + deadline_s
        conditions: list[tuple[str, filters.Operator, str | Sequence[str]]] = []
        if excluded:
            conditions.append(("item_id", "not in", excluded))
        if source is not None:
            conditions.append(("source", "==", source))
        chosen = [one for one in self._open if modalities is None or one in modalities]
        arguments = {
            **filters.build(*conditions, templates=self.profile.templates).arguments(),
            "consistency_level": _consistency(read_your_writes),
            "limit": k,
            "output_fields": ["item_id"],
            "until": until,
        }
        dense = self._start_legs(chosen, "dense", query, arguments)
        words = [] if query_text is None else self._start_legs(chosen, "bm25", query_text, arguments)
        best = merge([wait() for wait in dense], k)
        if query_text is not None:
            best = fuse([best, merge([wait() for wait in words], k)], k)
        return self._fetch(best, read_your_writes, until)

    def get(self, ids: Iterable[str], *, read_your_writes: bool = True, deadline_s: float = 30.0) -> list[Item]:
        """The stored items among ``ids``, with their trees, in the order of ``ids``."""
        wanted = list(dict.fromkeys(ids))
        rows = self._by_id(wanted, _ITEM_FIELDS, _ITEMS_A_CALL, read_your_writes, deadline_s)
        found = {row["item_id"]: decode_row(row) for row in rows}
        return [found[one] for one in wanted if one in found]

    def delete(self, ids: Iterable[str], *, deadline_s: float = 30.0) -> None:
        """Remove items; ids that are not stored are passed over."""
        until = time.monotonic() + deadline_s
        for part in _parts(dict.fromkeys(ids), _IDS_A_CALL):
            chosen = filters.build(("item_id", "in", part), templates=self.profile.templates)
            waits = [
                self._connection.start("delete", collection.target, until=until, **chosen.arguments())
                for collection in self._open.values()
            ]
            for wait in waits:
                wait()

    def count(self, modality: Modality | None = None, *, deadline_s: float = 30.0) -> int:
        """Number of items, of one modality or of all, everything written before the call included."""
        until = time.monotonic() + deadline_s
        arguments = {"filter": "", "output_fields": ["count(*)"], "consistency_level": "Strong"}
        waits = [
            self._connection.start("query", collection.target, until=until, **arguments)
            for one, collection in self._open.items()
            if modality in (None, one)
        ]
        return sum(int(wait()[0]["count(*)"]) for wait in waits)

    def publish(self, *, deadline_s: float = 30.0) -> None:
        """Point the corpus's name at this version, one modality after the other; searches go on meanwhile.

        Raises:
            InvalidRequest: The corpus was opened without a version.
        """
        if self._opening.version is None:
            raise InvalidRequest("this corpus is the published one; open a version to publish it")
        until = time.monotonic() + deadline_s
        for modality in self._open:
            self._opening.publish(self._connection, modality, self._opening.version, until)

    def drop(self, *, deadline_s: float = 60.0) -> None:
        """Remove the collections that are open here, with their names, and all their items."""
        until = time.monotonic() + deadline_s
        for modality in self.modalities:
            description = self._connection.call("describe_collection", self._open[modality].target, until=until)
            collection = description["collection_name"]
            aliases = self._connection.call("list_aliases", until=until, collection_name=collection)["aliases"]
            for alias in aliases:
                self._connection.call("drop_alias", until=until, alias=alias)
            self._connection.call("drop_collection", collection, until=until)
            del self._open[modality]

    def close(self) -> None:
        """Close the connection. A folder can then be opened by another process."""
        self._connection.close()

    def __enter__(self) -> Corpus:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_search(self, k: int, excluded: Sequence[str], query_text: str | None) -> None:
        if k < 1:
            raise InvalidRequest(f"k {k} is less than 1")
        for what, size in (("search results", k), ("ids to leave out", len(excluded))):
            if size > MAX_RESULTS:
                raise LimitExceeded(what, actual=size, limit=MAX_RESULTS, name="max_results")
        if query_text is None:
            return
        if not query_text.strip():
            raise InvalidRequest("query_text is empty")
        if not all(collection.words for collection in self._open.values()):
            raise RetrievalError(f"search by words is not supported by this profile ({self.profile}): it has no BM25")

    def _collection(self, modality: Modality) -> Collection:
        if modality not in self._open:
            raise RetrievalError(f"corpus {self.name!r} has no collection for {modality!r}; open it with create=True")
        return self._open[modality]

    def _write(self, modality: Modality, group: dict[str, Row], deadline_s: float) -> int:
        """Write and empty one group."""
        if not group:
            return 0
        data = [row.values for row in group.values()]
        self._connection.call("upsert", self._open[modality].target, until=time.monotonic() + deadline_s, data=data)
        group.clear()
        return len(data)

    def _start_legs(
        self, modalities: Sequence[Modality], field: str, query: Any, arguments: dict[str, Any]
    ) -> list[Callable[[], list[Candidate]]]:
        """Begin one search a modality and return what waits for each list."""

        def leg(modality: Modality) -> Callable[[], list[Candidate]]:
            collection = self._open[modality]
            metric, parameters = "BM25", {}
            if field == "dense":
                metric, parameters = "COSINE", search_parameters(collection.index, arguments["limit"])
            wait = self._connection.start(
                "search",
                collection.target,
                data=[query],
                anns_field=field,
                search_params={"metric_type": metric, "params": parameters},
                **arguments,
            )
            return lambda: [Candidate(hit.id, modality, float(hit.distance)) for hit in wait()[0]]

        return [leg(modality) for modality in modalities]

    def _fetch(self, best: Sequence[Candidate], read_your_writes: bool, until: float) -> list[Hit]:
        """Items and trees of the winners only; one that was deleted since the search is left out."""
        by_modality: dict[Modality, list[str]] = {}
        for one in best:
            by_modality.setdefault(one.modality, []).append(one.id)
        items: dict[tuple[Modality, str], Item] = {}
        waits = [
            (modality, self._start_query(modality, part, _ITEM_FIELDS, read_your_writes, until))
            for modality, ids in by_modality.items()
            for part in _parts(ids, _ITEMS_A_CALL)
        ]
        for modality, wait in waits:
            for row in wait():
                if row["enc_rev"] != self.revision:
                    raise EncoderMismatch(
                        f"corpus {self.name!r} now holds vectors of encoder {row['enc_rev']}, this process uses "
                        f"{self.revision}; open the corpus again with the new encoder"
                    )
                items[modality, row["item_id"]] = decode_row(row)
        found = ((one, items.get((one.modality, one.id))) for one in best)
        return [Hit(item, one.score, one.modality) for one, item in found if item is not None]

    def _by_id(
        self, ids: Iterable[str], fields: list[str], size: int, read_your_writes: bool, deadline_s: float
    ) -> Iterator[Any]:
        """Rows of ``ids`` in all modalities."""
        until = time.monotonic() + deadline_s
        for part in _parts(dict.fromkeys(ids), size):
            waits = [self._start_query(one, part, fields, read_your_writes, until) for one in self._open]
            for wait in waits:
                yield from wait()

    def _start_query(
        self, modality: Modality, ids: list[str], fields: list[str], read_your_writes: bool, until: float
    ) -> Callable[[], Any]:
        return self._connection.start(
            "query",
            self._open[modality].target,
            until=until,
            output_fields=fields,
            consistency_level=_consistency(read_your_writes),
            **filters.build(("item_id", "in", ids), templates=self.profile.templates).arguments(),
        )


def _consistency(read_your_writes: bool) -> str:
    return "Strong" if read_your_writes else "Bounded"


def _parts(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """``values`` in lists of ``size``."""
    source = iter(values)
    while part := list(islice(source, size)):
        yield part
