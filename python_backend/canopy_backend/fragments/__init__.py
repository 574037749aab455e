"""Fragments: the smallest parts of an item that can be kept or dropped, and how a run of them reads.

Fragments cover an item without gap or overlap and keep their place in it, so a region is a pointer into the source
and never has to be searched for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from canopy_backend.fragments.table import table_renderer, table_spans
from canopy_backend.fragments.text import text_spans
from canopy_backend.fragments.types import Fragments, Spans, Unit
from canopy_backend.fragments.video import Transcript, video_spans
from canopy_backend.items import ImageItem, Item, TableItem, TextItem

__all__ = ["Fragments", "Spans", "Unit", "fragment", "render", "renderer"]


def fragment(item: Item) -> Fragments:
    """Cut an item into its fragments: sentences, rows, 30 s segments, or the whole image.

    Returns:
        At least one span. An empty text is ``[0, 0)``, a table without rows is rows ``[0, 0)``.

    Raises:
        InvalidItem: A clip is longer than spans can say.
    """
    if isinstance(item, TextItem):
        return Fragments("text", text_spans(item.text))
    if isinstance(item, TableItem):
        return Fragments("table", table_spans(len(item.rows)))
    if isinstance(item, ImageItem):
        return Fragments("image", np.array([[0, 1]], np.int32))
    return Fragments("video", video_spans(item))


def renderer(item: Item, fragments: Fragments) -> Callable[[int, int], str]:
    """A function of ``first`` and ``last`` that does what :func:`render` does, for many runs of one item.

    Args:
        item: The item.
        fragments: Its fragments, as :func:`fragment` made them.
    """
    if isinstance(item, TextItem):
        text, edges = item.text, [0, *fragments.spans[:, 1].tolist()]
        return lambda first, last: text[edges[first] : edges[last]]
    if isinstance(item, TableItem):
        return table_renderer(item)
    if isinstance(item, ImageItem):
        caption = item.caption
        return lambda first, last: caption
    return Transcript(item, len(fragments)).render


def render(item: Item, fragments: Fragments, first: int, last: int) -> str:
    """The run of fragments ``[first, last)`` in the item's own words.

    The title is not part of it (see :mod:`canopy_backend.templates`); a table comes with its header, a video
    transcript without time stamps, an image as its caption.

    Args:
        item: The item.
        fragments: Its fragments, as :func:`fragment` made them.
        first: First fragment of the run.
        last: One past the last fragment of the run.
    """
    if isinstance(item, TextItem):
        return item.text[int(fragments.spans[first, 0]) : int(fragments.spans[last - 1, 1])]
    return renderer(item, fragments)(first, last)
