"""One call of a client as one or several requests: cut by the server's limits, halved when too large, in order.

A job decides and a client sends. Neither knows the other's kind: the sync and the async client drive the same jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from canopy_backend.errors import CanopyError, InvalidItem, InvalidRequest, LimitExceeded
from canopy_backend.evidence import Evidence
from canopy_backend.items import ImageItem, Item, TableItem, TextItem, VideoItem, decode_item, encode_item
from canopy_backend.limits import Limits
from canopy_backend.tree import revision_of
from canopy_client import codec
from canopy_client.codec import FloatArray, RequestOptions
from canopy_client.status import shifted
from canopy_milvus import IndexedItem

T = TypeVar("T")

#: Bytes of one request. Triton takes 2 GiB; smaller messages keep several in flight and the server's memory flat.
REQUEST_BYTES: Final = 16 * 1024 * 1024

#: Requests of one call that are in flight together. The server batches across them; more would only queue there.
PARALLEL: Final = 4

#: Limits that a request with half the items can meet.
HALVED: Final = frozenset(
    {"max_items", "max_rows", "max_patches", "max_queries", "max_request_picture_bytes", "message_bytes"}
)

#: Asked of a server to learn whether it works, not only whether its port is open.
CANARY: Final = TextItem(id="canary", text="The canary sings. The air is good.")

#: What the encoder raises for values that JSON has no form for, loops and numbers beyond 64 bits among them.
_UNWRITABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)

ItemLike = Item | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A run ``[start, end)`` of a job's inputs, sent as one request."""

    start: int
    end: int

    def halves(self) -> tuple[Part, Part]:
        """Two parts of nearly one size."""
        middle = (self.start + self.end + 1) // 2
        return Part(self.start, middle), Part(middle, self.end)


@dataclass(slots=True)
class Job(Generic[T]):
    """The requests of one call, and what came back.

    Attributes:
        parts: How the inputs are cut at first.
        build: Makes the request of a part.
        read: Turns a part's reply into one result an input.
    """

    parts: list[Part]
    build: Callable[[Part, RequestOptions], Any]
    read: Callable[[Part, Any], list[T]]

    def after(self, part: Part, error: CanopyError) -> tuple[Part, Part]:
        """The two parts to send instead of one that was refused.

        Raises:
            CanopyError: Smaller parts would not help; where the error names an item, its index counts the whole call.
        """
        if isinstance(error, LimitExceeded) and error.name in HALVED and part.end - part.start > 1:
            return part.halves()
        raise shifted(error, part.start) from None


class Results(Generic[T]):
    """Results of parts that finish in any order, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[int, list[T]] = {}

    def put(self, part: Part, values: list[T]) -> None:
        """Keep the results of one part."""
        with self._lock:
            self._parts[part.start] = values

    def in_order(self) -> list[T]:
        """All results, in the order of the inputs."""
        return [value for start in sorted(self._parts) for value in self._parts[start]]


def plan(sizes: Sequence[int], *, most: int, most_bytes: int = REQUEST_BYTES) -> list[Part]:
    """Cut inputs into runs of at most ``most`` and, where there is more than one, of at most ``most_bytes``."""
    parts: list[Part] = []
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and (place - start == most or total + size > most_bytes):
            parts.append(Part(start, place))
            start, total = place, 0
        total += size
    if len(sizes) > start:
        parts.append(Part(start, len(sizes)))
    return parts


def require_text(query: str, what: str = "query") -> str:
    """The same text, which must hold more than white space.

    Raises:
        InvalidRequest: It does not, or is not text.
    """
    if not isinstance(query, str):
        raise InvalidRequest(f"{what}: expected text, got {type(query).__name__}")
    if not query.strip():
        raise InvalidRequest(f"{what}: is empty")
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{what}: character {error.start} cannot be written as UTF-8") from None
    return query


def require_texts(queries: Sequence[str]) -> list[str]:
    """The same texts.

    Raises:
        InvalidRequest: One is not text, or empty; or a single text was given instead of several.
    """
    if isinstance(queries, str):
        raise InvalidRequest("queries: expected a list of texts, got one text")
    return [require_text(query, f"query {place}") for place, query in enumerate(queries)]


def prepare_items(items: Sequence[ItemLike]) -> tuple[list[Item], list[bytes]]:
    """Items as objects and as JSON. Repeated ids are refused here, since a split call would hide them.

    Raises:
        InvalidItem: An item is malformed or repeats an id; ``index`` counts the whole call.
    """
    objects: list[Item] = []
    payloads: list[bytes] = []
    places: dict[str, int] = {}
    for index, given in enumerate(items):
        try:
            item, payload = _item(given)
        except InvalidItem as error:
            raise error.at(index) from None
        if item.id in places:
            raise InvalidItem(f"repeats the id of item {places[item.id]}", index=index, item_id=item.id, field="id")
        places[item.id] = index
        objects.append(item)
        payloads.append(payload)
    return objects, payloads


def _item(given: ItemLike) -> tuple[Item, bytes]:
    if isinstance(given, TextItem | TableItem | VideoItem | ImageItem):
        if not isinstance(given.id, str):
            raise InvalidItem(f"expected text, got {type(given.id).__name__}", field="id")
        try:
            return given, encode_item(given)
        except _UNWRITABLE as error:
            raise InvalidItem(f"cannot be written as JSON ({error})", item_id=str(given.id)) from None
    if not isinstance(given, Mapping):
        raise InvalidItem(f"expected an item or a dict, got {type(given).__name__}")
    try:
        payload = msgspec.json.encode(given)
    except _UNWRITABLE as error:
        raise InvalidItem(f"cannot be written as JSON ({error})") from None
    return decode_item(payload), payload


def compress_job(
    query: str, payloads: Sequence[bytes], limits: Limits, *, keep_tables_whole: bool, trace: bool
) -> Job[Evidence]:
    """The requests of ``compress``."""
    parameters: dict[str, bool | int | str] = {}
    if trace:
        parameters["canopy_trace"] = True
    if keep_tables_whole:
        parameters["canopy_keep_tables_whole"] = True

    def build(part: Part, options: RequestOptions) -> Any:
        asked = RequestOptions(parameters, options.timeout_us, options.request_id)
        return codec.compress_request(query, payloads[part.start : part.end], asked)

    def read(part: Part, response: Any) -> list[Evidence]:
        return codec.compress_response(response, part.end - part.start, trace=trace)

    return Job(plan([len(payload) for payload in payloads], most=limits.max_items), build, read)


def canary_job() -> Job[Evidence]:
    """The smallest request that runs both encoders and every step of ``compress``."""
    return compress_job("Is the air good?", [encode_item(CANARY)], Limits(), keep_tables_whole=False, trace=False)


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """The encoder that a server runs.

    Attributes:
        revision: 16 hex digits; trees and collections of another revision do not fit.
        dimension: Length of its vectors.
    """

    revision: str
    dimension: int


def encoder_info(indexed: IndexedItem) -> EncoderInfo:
    """What an indexed item tells of the encoder that made it.

    Raises:
        CanopyError: Its tree is none.
    """
    try:
        return EncoderInfo(revision_of(indexed.tree), len(indexed.embedding))
    except ValueError as error:
        raise CanopyError(f"reply of 'index': {error}") from None


def index_job(items: Sequence[Item], payloads: Sequence[bytes], limits: Limits) -> Job[IndexedItem]:
    """The requests of ``index``."""

    def build(part: Part, options: RequestOptions) -> Any:
        return codec.index_request(payloads[part.start : part.end], options)

    def read(part: Part, response: Any) -> list[IndexedItem]:
        trees, embeddings = codec.index_response(response, part.end - part.start)
        chosen = items[part.start : part.end]
        return [
            IndexedItem(item=item, tree=tree, embedding=embedding)
            for item, tree, embedding in zip(chosen, trees, embeddings, strict=True)
        ]

    return Job(plan([len(payload) for payload in payloads], most=limits.max_items), build, read)


def embed_job(queries: Sequence[str], limits: Limits) -> Job[FloatArray]:
    """The requests of ``embed_query``; one vector float32 ``[D]`` a query."""

    def build(part: Part, options: RequestOptions) -> Any:
        return codec.embed_query_request(queries[part.start : part.end], options)

    def read(part: Part, response: Any) -> list[FloatArray]:
        return list(codec.embed_query_response(response, part.end - part.start))

    return Job(plan([len(query) for query in queries], most=limits.max_queries), build, read)


def stack(vectors: Sequence[FloatArray]) -> npt.NDArray[np.float32]:
    """Vectors as rows, float32 ``[n, D]``; ``[0, 0]`` for none."""
    return np.stack(vectors) if vectors else np.zeros((0, 0), np.float32)
