"""Collections: their names, fields, indexes and properties."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from canopy_backend.errors import EncoderMismatch, InvalidRequest, RetrievalError
from canopy_backend.items import Modality
from canopy_milvus.driver import DataType, Function, FunctionType, MilvusClient
from canopy_milvus.profile import Profile
from canopy_milvus.rows import MAX_ID_BYTES, MAX_PIECES, MAX_SOURCE_BYTES, MAX_STRING_BYTES, MAX_TITLE_BYTES

MODALITIES: Final[tuple[Modality, ...]] = get_args(Modality)

#: Indexes of the dense vectors. FLAT is exact and right up to some 100,000 rows a modality.
DenseIndex: TypeAlias = Literal["FLAT", "HNSW", "DISKANN", "AUTOINDEX"]
_BUILD: Final[dict[DenseIndex, dict[str, int]]] = {
    "FLAT": {},
    "HNSW": {"M": 16, "efConstruction": 200},
    "DISKANN": {},
    "AUTOINDEX": {},
}

#: Property names; values are strings.
REVISION: Final = "canopy.revision"
DIMENSION: Final = "canopy.dimension"
KIND: Final = "canopy.profile"
INDEX: Final = "canopy.index"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def check_name(name: str) -> str:
    """``name``, if a corpus may be called that.

    Raises:
        InvalidRequest: Milvus would not take it.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"corpus name {name!r:.120}: letters, digits and _ only, up to 100, no digit in front")
    return name


def alias_of(corpus: str, modality: Modality) -> str:
    """The name that searches use; it points at one version."""
    return f"{corpus}_{modality}"


def collection_of(corpus: str, modality: Modality, version: int) -> str:
    """The name of one version's collection."""
    return f"{corpus}_{modality}_v{version}"


def definition(profile: Profile, *, dimension: int, revision: str, index: DenseIndex) -> dict[str, Any]:
    """Arguments of the driver's ``create_collection`` for one modality.

    Args:
        profile: What the deployment can do; words are indexed where it can.
        dimension: Length of the dense vectors.
        revision: Encoder revision that makes them.
        index: How they are indexed.
    """
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    indexes = MilvusClient.prepare_index_params()
    schema.add_field("item_id", DataType.VARCHAR, is_primary=True, max_length=MAX_ID_BYTES)
    schema.add_field("source", DataType.VARCHAR, max_length=MAX_SOURCE_BYTES)
    schema.add_field("title", DataType.VARCHAR, max_length=MAX_TITLE_BYTES)
    schema.add_field("content_hash", DataType.VARCHAR, max_length=32)
    schema.add_field("enc_rev", DataType.VARCHAR, max_length=64)
    schema.add_field("tree_stored", DataType.BOOL)
    # Only fetched, never searched: where the server can, they stay on disk instead of filling its memory.
    rarely = {"mmap_enabled": True} if profile.mmap else {}
    for name in ("item", "tree"):
        schema.add_field(
            name,
            DataType.ARRAY,
            element_type=DataType.VARCHAR,
            max_capacity=MAX_PIECES,
            max_length=MAX_STRING_BYTES,
            **rarely,
        )
    schema.add_field("dense", DataType.FLOAT_VECTOR, dim=dimension)
    indexes.add_index("dense", index_type=index, metric_type="COSINE", params=_BUILD[index])
    if profile.bm25:
        schema.add_field("text", DataType.VARCHAR, max_length=MAX_STRING_BYTES, enable_analyzer=True)
        schema.add_field("bm25", DataType.SPARSE_FLOAT_VECTOR)
        schema.add_function(
            Function(
                name="words",
                function_type=FunctionType.BM25,
                input_field_names=["text"],
                output_field_names=["bm25"],
            )
        )
        indexes.add_index(
            "bm25",
            index_type="SPARSE_INVERTED_INDEX",
            metric_type="BM25",
            params={"inverted_index_algo": "DAAT_MAXSCORE", "bm25_k1": 1.2, "bm25_b": 0.75},
        )
    properties = {REVISION: revision, DIMENSION: str(dimension), KIND: profile.kind, INDEX: index}
    return {
        "schema": schema,
        "index_params": indexes,
        "properties": properties,
        "consistency_level": "Bounded",
    }


def check_collection(
    description: Mapping[str, Any], profile: Profile, *, dimension: int, revision: str
) -> tuple[DenseIndex, bool]:
    """Compare a collection with what this process is about to do with it.

    Args:
        description: The driver's ``describe_collection``.
        profile: What the deployment can do.
        dimension: Length of this process's vectors.
        revision: Its encoder's revision.

    Returns:
        The index of the dense vectors, and whether words are indexed.

    Raises:
        EncoderMismatch: Other vectors are in it; names both.
        RetrievalError: It is not one of ours, or was made for another kind of deployment.
    """
    name = description["collection_name"]
    properties: Mapping[str, str] = description.get("properties") or {}
    if REVISION not in properties:
        raise RetrievalError(f"collection {name!r} was not made by this project: it has no property {REVISION!r}")
    found = (properties[REVISION], properties.get(DIMENSION))
    if found != (revision, str(dimension)):
        raise EncoderMismatch(
            f"collection {name!r} was indexed by encoder {found[0]} with {found[1]} dimensions, this process uses "
            f"{revision} with {dimension}; index into a new version and publish it"
        )
    if (kind := properties.get(KIND)) != profile.kind:
        raise RetrievalError(f"collection {name!r} was made on profile {kind!r}, this is {profile.kind!r}; index again")
    index = next((known for known in _BUILD if known == properties.get(INDEX)), None)
    if index is None:
        raise RetrievalError(
            f"collection {name!r} has an index that this version does not know: {properties.get(INDEX)!r}"
        )
    return index, any(field["name"] == "bm25" for field in description["fields"])


def search_parameters(index: DenseIndex, k: int) -> dict[str, int]:
    """Search parameters of a dense index: how many candidates to look at for ``k`` results."""
    if index == "HNSW":
        return {"ef": max(64, 2 * k)}
    if index == "DISKANN":
        return {"search_list": max(100, 2 * k)}
    return {}
