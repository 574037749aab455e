"""Processes that die: the one that ingests, the server, and the one that holds the folder."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from milvus_data import DIMENSION, REVISION, exact, ids, indexed, passages, unit
from milvus_fixture import RunningMilvus
from patience import PATIENCE_S

from canopy_backend.errors import DeadlineExceeded, InvalidRequest, RetrievalError, ServerUnavailable
from canopy_milvus import Corpus

BACKENDS = ["lite", pytest.param("server", marks=pytest.mark.milvus_server)]


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder, or the address of a server of this test alone."""
    if request.param == "lite":
        yield str(tmp_path / "corpus")
        return
    server = RunningMilvus(tmp_path).start()
    yield server.uri
    server.kill()


INGEST = """
import sys, time
sys.path[:0] = {path!r}
from milvus_data import *
from canopy_milvus import Corpus
def slowly():
    for number, row in enumerate(indexed(passages(40))):
        if number == 24:
            print("half", flush=True)
            time.sleep(60)
        yield row
Corpus.open({place!r}, {name!r}, revision=REVISION, dimension=DIMENSION, create=True, modalities=["text"]).upsert(
    slowly(), batch=8)
"""


def test_ingestion_killed_half_way_and_run_again_is_one_clean_run(
    place: str,
) -> None:
    name = "interrupted"
    code = INGEST.format(path=[str(Path(__file__).parent)], place=place, name=name)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    if "://" not in place:
        with pytest.raises(RetrievalError, match="open in another process"):
            Corpus.open(place, name, revision=REVISION, dimension=DIMENSION)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    rows = indexed(passages(40))
    options = {"revision": REVISION, "dimension": DIMENSION, "create": True, "modalities": ["text"]}
    with Corpus.open(place, name, **options) as corpus:
        done = corpus.unchanged([row.item for row in rows])
        assert done == {f"p{n}" for n in range(24)}
        assert corpus.upsert(row for row in rows if row.item.id not in done) == 16
        assert corpus.upsert(rows) == 40
        assert corpus.count() == 40
        query = unit(np.random.default_rng(8))
        hits = corpus.search(query, 40, read_your_writes=True)
        assert ids(hits) == [found for found, _ in exact(rows, query)]
        assert {hit.item.id: hit.item.tree for hit in hits} == {row.item.id: row.tree for row in rows}
        corpus.drop()


def test_a_folder_is_closed_with_its_last_corpus(tmp_path: Path) -> None:
    place = str(tmp_path / "corpus")
    options = {"revision": REVISION, "dimension": DIMENSION, "modalities": ["text"]}
    with Corpus.open(place, create=True, **options) as first:
        first.upsert(indexed(passages(3)))
        Corpus.open(place, **options).close()
        assert first.count() == 3
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from milvus_data import *; "
    code += f"from canopy_milvus import Corpus; print(Corpus.open({place!r}, **{options!r}).count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout.strip(), done.stderr) == ("3", "")


def test_an_unusable_place_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"revision": REVISION, "dimension": DIMENSION}
    monkeypatch.delenv("MILVUS_URI", raising=False)
    with pytest.raises(InvalidRequest, match="MILVUS_URI"):
        Corpus.open(**options)
    monkeypatch.setenv("MILVUS_URI", str(tmp_path / "nothing"))
    with pytest.raises(RetrievalError, match="no corpus"):
        Corpus.open(**options)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidRequest, match="is a file"):
        Corpus.open(str(tmp_path / "file"), **options)
    started = time.monotonic()
    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:1\b"):
        Corpus.open("http://user:secret@127.0.0.1:1", deadline_s=5, **options)
    assert time.monotonic() - started < PATIENCE_S


@pytest.mark.milvus_server
def test_a_dead_server_is_told_in_time_and_found_again(tmp_path: Path) -> None:
    server = RunningMilvus(tmp_path).start()
    try:
        rows = indexed(passages(5))
        options = {"revision": REVISION, "dimension": DIMENSION, "modalities": ["text"]}
        with Corpus.open(server.uri, create=True, **options) as corpus:
            corpus.upsert(rows)
            assert corpus.count() == 5
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            started = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                corpus.search(rows[0].embedding, 3, deadline_s=2)
            assert time.monotonic() - started < PATIENCE_S
            server.process.send_signal(signal.SIGCONT)
            assert len(corpus.search(rows[0].embedding, 3, read_your_writes=True, deadline_s=PATIENCE_S)) == 3
            server.kill()
            started = time.monotonic()
            with pytest.raises(ServerUnavailable):
                corpus.search(rows[0].embedding, 3, deadline_s=5)
            with pytest.raises(ServerUnavailable):
                corpus.upsert(rows, deadline_s=5)
            assert time.monotonic() - started < PATIENCE_S
            with ThreadPoolExecutor(1) as pool:  # begun while nothing answers: the deadline covers the restart
                early = pool.submit(corpus.search, rows[0].embedding, 5, read_your_writes=True, deadline_s=PATIENCE_S)
                server.start()
                assert ids(early.result())[0] == "p0"
            assert corpus.count() == 5
    finally:
        server.kill()
