"""Fragments: the smallest parts of an item that can be kept or dropped, and how a run of them reads.

Fragments cover an item without gap or overlap and keep their place in it, so a region is a pointer into the source
and never has to be searched for.
"""

from __future__ import annotations

from canopy_backend.fragments.table import render_table, table_spans
from canopy_backend.fragments.text import text_spans
from canopy_backend.fragments.types import Fragments, Unit
from canopy_backend.fragments.video import render_video, video_spans
from canopy_backend.items import ImageItem, Item, TableItem, TextItem, VideoItem

__all__ = ["Fragments", "Unit", "fragment", "render"]


def fragment(item: Item) -> Fragments:
    """Cut an item into its fragments: sentences, rows, 30 s segments, or the whole image.

    Returns:
        At least one span. An empty text is ``[0, 0)``, a table without rows is rows ``[0, 0)``.
    """
    if isinstance(item, TextItem):
        return Fragments("text", text_spans(item.text))
    if isinstance(item, TableItem):
        return Fragments("table", table_spans(len(item.rows)))
    if isinstance(item, VideoItem):
        return Fragments("video", video_spans(item.duration_s))
    return Fragments("image", table_spans(1))


def render(item: Item, fragments: Fragments, first: int, last: int) -> str:
    """The run of fragments ``[first, last)`` in the item's own words.

    Titles are not part of it (see :mod:`canopy_backend.templates`); a table comes with its header, a video transcript
    without time stamps, an image as its caption.

    Args:
        item: The item.
        fragments: Its fragments, as :func:`fragment` made them.
        first: First fragment of the run.
        last: One past the last fragment of the run.
    """
    if isinstance(item, ImageItem):
        return item.caption
    start = int(fragments.spans[first, 0])
    end = int(fragments.spans[last - 1, 1])
    if isinstance(item, TextItem):
        return item.text[start:end]
    if isinstance(item, TableItem):
        return render_table(item, start, end)
    return render_video(item, fragments, first, last)
