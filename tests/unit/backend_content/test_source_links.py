"""Folders and links: whoever fills a folder does not choose what else of the machine is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from canopy_backend.errors import InvalidItem, InvalidRequest
from canopy_backend.sources import read_items

LINE = '{"modality": "text", "id": "secret", "text": "The password."}\n'


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("secret.txt", "secret.md", "secret.csv", "secret.png", "secret.caption.txt"):
        (folder / name).write_text("The password.")
    (folder / "secret.jsonl").write_text(LINE)
    (folder / "secret.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:02.000\nThe password.\n")
    return folder


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "inside"
    (folder / "deep").mkdir(parents=True)
    (folder / "own.txt").write_text("Own words.")
    return folder


def found(*paths: Path) -> list[str]:
    return [item.id.rpartition("/")[2] for item in read_items(paths)]


@pytest.mark.parametrize("suffix", ["txt", "md", "csv", "jsonl", "vtt"])
@pytest.mark.parametrize("absolute", [True, False])
def test_links_out_of_a_folder_are_left_out(inside: Path, outside: Path, suffix: str, absolute: bool) -> None:
    target = outside / f"secret.{suffix}"
    link = inside / "deep" / f"link.{suffix}"
    link.symlink_to(target if absolute else Path(os.path.relpath(target, link.parent)))
    assert found(inside) == ["own.txt#0"]
    # Who names it means it.
    assert len(found(link)) == 1


def test_linked_folders_are_not_walked(inside: Path, outside: Path) -> None:
    (inside / "folder").symlink_to(outside)
    (inside / "round").symlink_to(inside)
    assert found(inside) == ["own.txt#0"]


def test_a_folder_behind_a_link_is_read_as_the_folder_that_it_is(inside: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(inside)
    assert found(tmp_path / "alias") == ["own.txt#0"]


def test_links_inside_a_folder_are_read_once(inside: Path) -> None:
    (inside / "again.txt").symlink_to(inside / "own.txt")
    (inside / "deep" / "up.txt").symlink_to(Path("..") / "own.txt")
    assert found(inside) == ["again.txt#0"]


def test_links_that_lead_nowhere_or_in_circles_are_passed_over(inside: Path) -> None:
    (inside / "nowhere.txt").symlink_to(inside / "missing")
    (inside / "circle.txt").symlink_to(inside / "circle.txt")
    assert found(inside) == ["own.txt#0"]
    for name in ("nowhere.txt", "circle.txt"):
        with pytest.raises(InvalidRequest, match="no such file"):
            found(inside / name)


def test_a_folder_of_nothing_but_links_out_says_so(inside: Path, outside: Path) -> None:
    (inside / "own.txt").unlink()
    (inside / "link.txt").symlink_to(outside / "secret.txt")
    with pytest.raises(InvalidRequest, match="and no link out of it"):
        found(inside)


def test_captions_do_not_lead_out_of_the_folder(inside: Path, outside: Path) -> None:
    (inside / "a.png").write_bytes(b"\x89PNG")
    (inside / "a.caption.txt").symlink_to(outside / "secret.txt")
    for path in (inside, inside / "a.png"):
        with pytest.raises(InvalidItem, match=r"a\.caption\.txt: a link that leads out of its folder"):
            found(path)
    # A picture and its caption that were laid elsewhere together are one thing.
    (inside / "b.png").symlink_to(outside / "secret.png")
    (inside / "b.caption.txt").symlink_to(outside / "secret.caption.txt")
    assert found(inside / "b.png") == ["b.png#0"]


def test_transcripts_of_clips_do_not_lead_out_of_the_folder(inside: Path, outside: Path) -> None:
    (inside / "clip.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    (inside / "clip.vtt").symlink_to(outside / "secret.vtt")
    with pytest.raises(InvalidItem, match=r"clip\.vtt: a link that leads out of its folder"):
        list(read_items([inside / "clip.mp4"], pixels=True))


def test_a_pipe_is_not_waited_for(inside: Path) -> None:
    os.mkfifo(inside / "pipe.txt")
    assert found(inside) == ["own.txt#0"]
    with pytest.raises(InvalidRequest, match="no regular file"):
        found(inside / "pipe.txt")


def test_dots_in_paths_are_the_callers_own(inside: Path) -> None:
    assert found(inside / "deep" / ".." / "own.txt") == ["own.txt#0"]


def test_what_an_item_names_is_not_opened(tmp_path: Path) -> None:
    items = [
        '{"modality": "image", "id": "i", "caption": "x", "uri": "file:///etc/passwd", "source": "/etc/passwd"}',
        '{"modality": "video", "id": "v", "duration_s": 3, "uri": "../../etc/passwd"}',
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(items))
    image, clip = read_items([tmp_path / "x.jsonl"], pixels=True)
    assert (image.image, clip.frames) == (None, [])
    assert (image.source, clip.source) == ("/etc/passwd", (tmp_path / "x.jsonl").as_posix())


def test_a_name_that_is_not_utf_8_is_told(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")
    Path(name).write_text("Words.")
    with pytest.raises(InvalidItem, match="the path is not UTF-8"):
        found(tmp_path)
