"""Files to items: every kind, and every way in which a file can be wrong."""

import gzip
from pathlib import Path

import pytest

from canopy_backend.errors import InvalidItem, InvalidRequest
from canopy_backend.fragments import fragment, render
from canopy_backend.sources import files, read_items
from canopy_backend.sources.passages import LONGEST, passages

AWKWARD = Path(__file__).parents[4] / "shared" / "data" / "awkward"
LINE = b'{"modality": "text", "id": "a", "text": "One. Two."}\n'


def read(path, content=None):
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_items([path]))


def refusal(path, content=None):
    with pytest.raises(InvalidRequest) as caught:
        read(path, content)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_json_lines_plain_and_compressed(tmp_path):
    other = LINE.replace(b'"a"', b'"b"').replace(b"{", b'{"source": "book", ')
    (plain,) = read(tmp_path / "x.jsonl", b"\xef\xbb\xbf" + LINE + b"\n")
    (packed,) = read(tmp_path / "y.jsonl.gz", gzip.compress(other))
    assert (plain.id, plain.text, plain.source) == ("a", "One. Two.", (tmp_path / "x.jsonl").as_posix())
    assert (packed.id, packed.source) == ("b", "book")


def test_a_bad_line_is_named(tmp_path):
    assert "line 3: " in refusal(tmp_path / "x.jsonl", LINE + b"\n{]\n")
    assert "line 1: " in refusal(tmp_path / "y.jsonl", LINE.replace(b'"text": "One', b'"no": "One'))
    assert "UTF-8" in refusal(tmp_path / "z.jsonl", b'{"modality": "text", "id": "\xff"}')


def test_ids_are_unique_over_files(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(LINE)
    (tmp_path / "y.jsonl").write_bytes(LINE)
    with pytest.raises(InvalidItem, match=r"y\.jsonl repeats an id of .*x\.jsonl"):
        list(read_items([tmp_path]))


def test_text_is_gathered_into_passages(tmp_path):
    paragraph = "The weir was built of stone. " * 20
    items = read(tmp_path / "the_old-weir.txt", "\r\n\r\n".join([paragraph.strip()] * 5))
    assert [item.id for item in items] == [f"{(tmp_path / 'the_old-weir.txt').as_posix()}#{n}" for n in range(2)]
    assert {item.title for item in items} == {"the old weir"}
    assert [item.text.count("The weir") for item in items] == [60, 40]
    assert items == read(tmp_path / "the_old-weir.txt")


def test_a_long_paragraph_is_cut_between_sentences():
    text = "The weir was built of stone. " * 200
    found = list(passages(text))
    assert all(len(passage) <= LONGEST and passage.endswith("stone.") for passage in found)
    assert " ".join(found) + " " == text


def test_markdown_sections_have_the_path_of_their_headings(tmp_path):
    text = "Before.\n# Weir\n\nIntro.\n\n## Gates\n\n### North ##\nOpens.\n"
    text += "```\n# no heading\n```\n## Empty\n# Lock\nShut.\n"
    found = [(item.title, item.text) for item in read(tmp_path / "guide.md", text)]
    assert found == [
        ("guide", "Before."),
        ("Weir", "Intro."),
        ("Weir > Gates > North", "Opens.\n```\n# no heading\n```"),
        ("Weir > Empty", "## Empty"),
        ("Lock", "Shut."),
    ]


def test_a_fence_with_blank_lines_is_not_cut_into_paragraphs(tmp_path):
    fence = "```\n" + "step\n\n" * 300 + "```"
    found = read(tmp_path / "x.md", "First words. " * 100 + "\n\n" + fence + "\n\nLast.")
    assert [item.text for item in found] == [("First words. " * 100).strip(), fence, "Last."]


def test_csv_with_quotes_line_breaks_and_ragged_rows(tmp_path):
    content = '\ufeffgate,note\r\n1,"ha\n""ha"", ha"\r\n\r\n2\r\n3,a,extra\r\n'
    (item,) = read(tmp_path / "gates.csv", content)
    assert item.columns == ["gate", "note", ""]
    assert item.rows == [["1", 'ha\n"ha", ha'], ["2"], ["3", "a", "extra"]]
    assert render(item, fragment(item), 0, 2).endswith('| 1 | ha<br>"ha", ha |  |\n| 2 |  |  |')


def test_tsv_and_header_only(tmp_path):
    (item,) = read(tmp_path / "x.tsv", "a, b\tc\n")
    assert (item.columns, item.rows) == (["a, b", "c"], [])


def test_a_long_table_becomes_parts_that_fit_a_request(tmp_path):
    parts = read(tmp_path / "x.csv", "n\n" + "\n".join(map(str, range(5000))))
    assert [len(part.rows) for part in parts] == [4096, 904]
    assert {tuple(part.columns) for part in parts} == {("n",)}


def test_a_wide_header_counts_with_every_row(tmp_path):
    header = ",".join(f"measured value {column}" for column in range(30))
    row = ",".join("7" for _ in range(30))
    parts = read(tmp_path / "x.csv", "\n".join([header, *[row] * 200]))
    # 10 names of 16 and 20 of 17 letters, 30 cells of one; 4 bytes of marks each, 6 of dashes below a name.
    assert 1024 * 88 // (10 * 26 + 20 * 27 + 30 * 5) == 94
    assert [len(part.rows) for part in parts] == [94, 94, 12]


def test_a_field_too_large_for_csv_is_named_with_its_line(tmp_path):
    assert "line 2: " in refusal(tmp_path / "x.csv", 'a\n"' + "x" * 200_000 + '"\n')


def test_transcripts_with_overlap_gaps_and_tags(tmp_path):
    vtt = (
        "WEBVTT\n\nNOTE by hand\n\n1\n00:01.000 --> 00:04.000 align:start\n<v Ann>Hello <i>there</i> &amp; you\nall\n\n"
        "00:03.000 --> 00:05.000\na < b > c\n\n00:05.000 --> 00:06.000\n<b></b>\n\n01:40.000 --> 01:39.000\nBack.\n"
    )
    (item,) = read(tmp_path / "tour.vtt", vtt)
    assert [(cue.start, cue.end, cue.text) for cue in item.segments] == [
        (1.0, 4.0, "Hello there & you all"),
        (3.0, 5.0, "a < b > c"),
        (100.0, 100.0, "Back."),
    ]
    assert item.duration_s == 100.0
    srt = "1\n00:00:02,560 --> 00:00:09,130\n{\\an8}<i>Bonjour</i>\n"
    (item,) = read(tmp_path / "tour.srt", srt)
    assert [(cue.start, cue.end, cue.text) for cue in item.segments] == [(2.56, 9.13, "Bonjour")]


@pytest.mark.parametrize("content", ["hello", "WEBVTT\n", "WEBVTT\n\n00:00.000 --> 00:00.000\nx\n"])
def test_a_transcript_without_cues_is_refused(tmp_path, content):
    refusal(tmp_path / "x.vtt", content)


@pytest.mark.parametrize("hours", ["0200", "168", "9" * 400, "9" * 5000])
@pytest.mark.parametrize("suffix", ["vtt", "srt"])
def test_a_transcript_longer_than_a_clip_can_be_is_refused(tmp_path, suffix, hours):
    head, mark = ("WEBVTT\n\n", ".") if suffix == "vtt" else ("1\n", ",")
    stamps = f"00:00:01{mark}000 --> {hours}:00:01{mark}000"
    refusal(tmp_path / f"x.{suffix}", f"{head}{stamps}\nToo long.\n")
    within = f"00:00:01{mark}000 --> 167:59:59{mark}999"
    (item,) = read(tmp_path / f"y.{suffix}", f"{head}{within}\nA week.\n")
    assert item.duration_s == 604_799.999


def test_an_image_needs_its_caption(tmp_path):
    path = tmp_path / "dawn_1.png"
    assert str(tmp_path / "dawn_1.caption.txt") in refusal(path, b"\x89PNG")
    (tmp_path / "dawn_1.caption.txt").write_text("The weir\nat dawn.\n")
    (item,) = read(path)
    assert (item.title, item.caption, item.uri) == ("dawn 1", "The weir at dawn.", path.as_posix())
    assert [item.id for item in read_items([tmp_path])] == [f"{path.as_posix()}#0"]


def test_folders_are_walked_in_order_without_hidden_files(tmp_path):
    for name in ("b.txt", "a/c.txt", ".git/d.txt", "e.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("Words.")
    found = [item.source.removeprefix(tmp_path.as_posix()) for item in read_items([tmp_path, tmp_path / "b.txt"])]
    assert found == ["/a/c.txt", "/b.txt"]


def test_lines_of_another_kind_are_left_out_of_a_folder_only(tmp_path):
    (tmp_path / "items.jsonl").write_bytes(LINE)
    (tmp_path / "questions.jsonl").write_text('\n{"id": "q", "question": "When?"}\n')
    assert [item.id for item in read_items([tmp_path])] == ["a"]
    assert "modality" in refusal(tmp_path / "questions.jsonl")
    (tmp_path / "typo.jsonl").write_bytes(LINE.replace(b"modality", b"modalty"))
    with pytest.raises(InvalidItem, match=r"typo\.jsonl, line 1"):
        list(read_items([tmp_path]))


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    refusal(tmp_path)
    refusal(tmp_path / "missing.txt")
    refusal(tmp_path / "x.pdf", "words")
    assert "at byte 4, line 2" in refusal(tmp_path / "y.txt", b"ab\nc\xff")
    for content in ("", " \n", "\ufeff"):
        assert "empty" in refusal(tmp_path / "z.txt", content)
    assert "cannot be read" in refusal(tmp_path / "w.jsonl.gz", b"no gzip")
    assert "cannot be read" in refusal(tmp_path / "v.jsonl.gz", gzip.compress(LINE * 9)[:-9])
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100)
    assert "limit of 100" in refusal(tmp_path / "u.txt", "x" * 101)
    assert "after decompression" in refusal(tmp_path / "t.jsonl.gz", gzip.compress(LINE * 9))


@pytest.mark.skipif(not AWKWARD.is_dir(), reason=f"the folder of awkward documents is not at {AWKWARD}")
@pytest.mark.parametrize(
    ("name", "fragments"),
    [
        ("castle_solutions_2.csv", 902),
        ("quotes_and_newlines.csv", 2),
        ("elephantsdream_descriptions_en.vtt", 21),
        ("example_captions_overlap.vtt", 1),
        ("hf_hub_fr_overlap.srt", 15),
    ],
)
def test_awkward_documents(name, fragments):
    items = read(AWKWARD / name)
    runs = [fragment(item) for item in items]
    assert sum(map(len, runs)) == fragments
    for item, found in zip(items, runs, strict=True):
        lines = render(item, found, 0, len(found)).split("\n")
        assert len(lines) == (len(found) + 2 if item.modality == "table" else len(item.segments))
    assert len(items) == (5 if fragments == 902 else 1)
