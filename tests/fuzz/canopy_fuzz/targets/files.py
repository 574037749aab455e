"""Files that are indexed: JSON lines, text, Markdown, tables, transcripts; and data files of the training."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from canopy_backend.errors import InvalidItem, InvalidRequest, TrainingError
from canopy_backend.fragments import fragment
from canopy_backend.items import Item, decode_item, encode_item
from canopy_backend.sources import read_items
from canopy_backend.sources.delimited import read_delimited
from canopy_backend.sources.lines import read_lines
from canopy_backend.sources.passages import read_markdown, read_text
from canopy_backend.sources.transcripts import read_transcript
from canopy_fuzz.kinds import Target
from canopy_fuzz.targets.examples import ITEMS
from canopy_fuzz.targets.memory import InMemory
from canopy_training.data import _read_file


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="canopy-fuzz-")


def _reader(*readers: tuple[str, Callable[[Path], Iterator[Item]]]) -> Callable[[bytes], None]:
    """Reads the bytes as a file of each of the names; the first byte picks one."""

    def run(data: bytes) -> None:
        name, read = readers[data[0] % len(readers)] if data else readers[0]
        for item in read(InMemory.file(name, data[1:])):
            _check_taken(item)

    return run


def _check_taken(item: Item) -> None:
    """What a file gives is an item that a server takes."""
    try:
        decode_item(encode_item(item))
    except (InvalidItem, UnicodeError) as error:
        raise AssertionError(f"a file gave an item that no server takes: {error}") from None


def lines(data: bytes) -> None:
    """JSON lines, plain, compressed, and found in a folder, which looks at them first."""
    kind = data[0] if data else 0
    if kind not in (1, 2):
        for item in read_lines(InMemory.file("x.jsonl", data[1:])):
            fragment(item)
        return
    folder = Path(_folder().name)
    path = folder / ("x.jsonl.gz" if kind == 1 else "x.jsonl")
    path.write_bytes(data[1:])
    try:
        for item in read_items([path if kind == 1 else folder]):
            fragment(item)
    finally:
        path.unlink()


def gold(data: bytes) -> None:
    """A line of training data that brings its items."""
    for question in _read_file(InMemory.file("train.jsonl", data)):
        assert question.items
        assert question.gold or question.answers


def _line_seeds() -> list[bytes]:
    whole = b"\n".join(encode_item(item) for item in ITEMS[:3])
    packed = gzip.compress(whole, mtime=0)
    return [
        b"\0" + whole, b"\1" + packed, b"\1" + packed[:-9], b"\2" + whole, b"\2\xef\xbb\xbf\n", b"\2\n\xff",
        b'\2{"id":"q","question":"When?"}', b"\0" + b"[" * 300,
    ]  # fmt: skip


def _gold_seeds() -> list[bytes]:
    item = msgspec.json.decode(encode_item(ITEMS[0]))
    table = msgspec.json.decode(encode_item(ITEMS[1]))
    line = {"id": "q", "question": "Who?", "items": [item, table], "answers": ["a"], "split": "train"}
    marks = [
        {"item_id": "t", "span": [0, 5], "surface": "The w"}, {"item_id": "r", "rows": [1]},
        {"item_id": "t", "answer": "weir"}, {"item_id": "t", "time": [0, 1.5]}, {"item_id": "x"},
    ]  # fmt: skip
    return [msgspec.json.encode({**line, "gold": [mark]}) for mark in marks] + [msgspec.json.encode(line)]


TARGETS: Final = (
    Target(
        name="lines",
        decodes="JSON lines, plain and gzip",
        run=lines,
        allowed=(InvalidRequest,),
        seeds=_line_seeds,
        words=(b"\x1f\x8b\x08", b"\xef\xbb\xbf", b"\n", b'{"modality":"text","id":"a","text":"b"}', b"\xff"),
    ),
    Target(
        name="passages",
        decodes="text and Markdown",
        run=_reader(("x.txt", read_text), ("x.md", read_markdown)),
        allowed=(InvalidItem,),
        max_len=256,
        seeds=lambda: [
            b"\0One.\r\n\r\nTwo.",
            b"\1# A\n\nText.\n## B\n### C ##\n```\n# no\n```\n",
            b"\1\xef\xbb\xbf",
            b"\1#\n#\t\n",
            b"\0\xff",
        ],
        words=(b"# ", b"## ", b"```", b"\n\n", b"\r\n", b"\xef\xbb\xbf", b" #"),
    ),
    Target(
        name="tables",
        decodes="CSV and TSV",
        run=_reader(("x.csv", read_delimited), ("x.tsv", read_delimited)),
        allowed=(InvalidItem,),
        max_len=256,
        seeds=lambda: [
            b'\0a,b\r\n1,"x\n""y"""\r\n\r\n2\r\n3,4,5\r\n',
            b"\1a\tb\n1\t2\n",
            b"\0\xef\xbb\xbfa\n",
            b'\0"',
            b"\0a\0b\n",
        ],
        words=(b'"', b'""', b",", b"\t", b"\r", b"\n", b"\x00", b"\xc2\x85"),
    ),
    Target(
        name="subtitles",
        decodes="WebVTT and SubRip",
        run=_reader(("x.vtt", read_transcript), ("x.srt", read_transcript)),
        allowed=(InvalidItem,),
        seeds=lambda: [
            b"\0WEBVTT\n\nNOTE x\n\n1\n00:01.000 --> 00:04.000 align:start\n<v Ann>Hi <i>you</i> &amp;\n",
            b"\0WEBVTT\n\nSTYLE\n::cue{}\n\n00:01.000 --> 00:04.000\nx\n",
            b"\0WEBVTT\n\n01:40.000 --> 01:39.000\nBack.\n",
            b"\1\n1\n00:00:02,560 --> 00:00:09,130\n{\\an8}<i>Bonjour</i>\n",
            b"\1\n1\n99999:00:00,000 --> 999999:00:00,000\nx\n",
            b"\0WEBVTT",
            b"\1x",
        ],
        words=(
            b"WEBVTT",
            b" --> ",
            b"00:00:01.000",
            b"00:00:01,000",
            b"NOTE",
            b"STYLE",
            b"<v ",
            b"&#",
            b"99999",
            b"\n\n",
        ),
        max_len=256,
    ),
    Target(
        name="gold",
        decodes="training data, JSON lines",
        run=gold,
        allowed=(TrainingError,),
        seeds=_gold_seeds,
        words=(b'"gold":', b'"span":[0,1]', b'"rows":[0]', b'"time":[0,1]', b'"answer":"', b'"surface":"', b'"items":'),
        max_len=700,
    ),
)
