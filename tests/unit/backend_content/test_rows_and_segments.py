"""Tables, transcripts, images: fragments, and how runs of them read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.errors import InvalidItem
from canopy_backend.fragments import fragment, render, renderer
from canopy_backend.items import Cue, ImageItem, TableItem, VideoItem

GATES = TableItem(
    id="g",
    columns=["Gate", "Year", "Note"],
    header_rows=[["", "Built"]],
    rows=[["North", "1931", "a|b"], ["East"], ["South", "1940", "two\r\nlines\u2028 three "], ["C:\\x", "", ""]],
)
HEADER = "|  | Built |  |\n| Gate | Year | Note |\n| --- | --- | --- |"


def video(duration, *cues):
    return VideoItem(id="v", duration_s=duration, segments=[Cue(*cue) for cue in cues])


def shown(item, first, last):
    return render(item, fragment(item), first, last)


def test_a_row_is_a_fragment_and_has_the_header_with_it():
    assert fragment(GATES).spans.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert shown(GATES, 1, 2) == f"{HEADER}\n| East |  |  |"


def test_rows_are_padded_and_cells_escaped():
    assert shown(GATES, 0, 4).removeprefix(HEADER).split("\n")[1:] == [
        "| North | 1931 | a\\|b |",
        "| East |  |  |",
        "| South | 1940 | two<br>lines<br>three |",
        "| C:\\x |  |  |",
    ]


def test_a_table_has_one_separator_whatever_the_run():
    assert shown(GATES, 0, 4).count("---") == 3


@pytest.mark.parametrize("rows", [[], [["a", "b", "c"]]])
def test_a_short_table_is_one_fragment(rows):
    item = TableItem(id="t", columns=["x", "y", "z"], rows=rows)
    assert fragment(item).spans.tolist() == [[0, len(rows)]]
    assert shown(item, 0, 1).startswith("| x | y | z |\n| --- | --- | --- |")
    assert len(shown(item, 0, 1).split("\n")) == 2 + len(rows)


def test_an_empty_row_and_a_single_column():
    item = TableItem(id="t", columns=["x"], rows=[[], ["|"], ["\n"]])
    assert shown(item, 0, 3).split("\n")[2:] == ["|  |", "| \\| |", "|  |"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.text(max_size=8), max_size=3), max_size=5))
def test_every_row_is_one_line_with_every_cell(rows):
    item = TableItem(id="t", columns=["x", "y", "z"], rows=rows)
    lines = shown(item, 0, len(fragment(item))).split("\n")
    assert len(lines) == 2 + len(rows)
    assert all(line.replace("\\|", "").count("|") == 4 for line in lines)
    assert all(len(line.splitlines()) == 1 for line in lines)


@pytest.mark.parametrize(
    ("duration", "spans"),
    [
        (0.0004, [[0, 1]]),
        (20, [[0, 20_000]]),
        (59.999, [[0, 59_999]]),
        (60, [[0, 30_000], [30_000, 60_000]]),
        (65, [[0, 30_000], [30_000, 65_000]]),
        (90, [[0, 30_000], [30_000, 60_000], [60_000, 90_000]]),
    ],
)
def test_segments_of_a_clip(duration, spans):
    found = fragment(video(duration)).spans
    assert found.tolist() == spans
    assert found.dtype == np.int32


def test_a_clip_longer_than_spans_can_say_is_refused_by_field():
    with pytest.raises(InvalidItem, match="longer than a clip") as caught:
        fragment(video(1e300))
    assert caught.value.field == "duration_s"


def test_a_cue_belongs_to_every_segment_that_it_overlaps():
    item = video(90, (28, 31, "across the edge"), (30, 60, "the second"), (60, 60, "no length"), (10, 20, "early"))
    assert shown(item, 0, 1) == "early\nacross the edge"
    assert shown(item, 1, 2) == "across the edge\nthe second"
    assert shown(item, 2, 3) == "no length"
    assert shown(item, 0, 3) == "early\nacross the edge\nthe second\nno length"


def test_a_cue_behind_the_end_goes_to_the_last_segment():
    item = video(65, (70, 80, "late"), (64, 1e9, "long"))
    assert shown(item, 0, 1) == ""
    assert shown(item, 1, 2) == "long\nlate"


def test_silence_and_blank_cues_have_no_text():
    assert shown(video(90, (31, 32, "  ")), 0, 3) == ""


@settings(max_examples=50, deadline=None)
@given(
    st.floats(0.001, 500),
    st.lists(st.tuples(st.floats(0, 700), st.floats(0, 100)), max_size=12),
)
def test_segments_cover_the_clip_and_no_cue_is_lost(duration, times):
    item = video(duration, *((start, start + length, f"cue {place}.") for place, (start, length) in enumerate(times)))
    fragments = fragment(item)
    spans = fragments.spans
    assert spans[0, 0] == 0
    assert spans[-1, 1] == max(1, round(duration * 1000))
    assert (spans[1:, 0] == spans[:-1, 1]).all()
    assert all(end - start >= 30_000 for start, end in spans.tolist()) or len(spans) == 1
    show = renderer(item, fragments)
    lines = show(0, len(spans)).split("\n") if times else []
    assert sorted(lines) == sorted(f"cue {place}." for place in range(len(times)))
    single = {line for place in range(len(spans)) for line in show(place, place + 1).split("\n") if line}
    assert single == set(lines)


def test_an_image_is_one_fragment_and_reads_as_its_caption():
    item = ImageItem(id="i", title="Weir", caption="The weir at dawn.")
    assert fragment(item).spans.tolist() == [[0, 1]]
    assert fragment(item).unit == "image"
    assert shown(item, 0, 1) == "The weir at dawn."
