"""Queries of a request: checked, put into their template, tokenized, padded."""

from __future__ import annotations

from collections.abc import Sequence

from canopy_backend.errors import InvalidRequest, LimitExceeded
from canopy_backend.limits import Limits
from canopy_backend.templates import query_text
from canopy_backend.tokenization import EncoderTokenizer, pad
from canopy_backend.triton.tensors import Array, text


def query_rows(values: Sequence[bytes], tokenizer: EncoderTokenizer, limits: Limits) -> tuple[Array, Array]:
    """The encoder's rows of n queries: ids and mask, int64 ``[n, L]``.

    Raises:
        InvalidRequest: There is no query, or one is blank or not UTF-8.
        LimitExceeded: There are too many queries, or one is too long; a query is never cut.
    """
    limits.check("max_queries", len(values), "queries of the request")
    if not values:
        raise InvalidRequest("QUERY holds no query")
    queries = []
    for place, value in enumerate(values):
        name = f"query {place}"
        query = text(value, name)
        limits.check("max_query_chars", len(query), f"{name}: code points")
        if not query.strip():
            raise InvalidRequest(f"{name} is empty")
        queries.append(query_text(query))
    rows = tokenizer.encode(queries)
    longest = max(range(len(rows)), key=lambda place: len(rows[place]))
    if len(rows[longest]) > tokenizer.window:
        raise LimitExceeded(
            f"query {longest}: tokens", actual=len(rows[longest]), limit=tokenizer.window, name="window"
        )
    return pad(rows)
