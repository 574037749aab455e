"""The same corpus on Milvus Lite and on a real Milvus 2.3.5 server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from milvus_data import DIMENSION, ODD_IDS, OTHER, REVISION, exact, ids, indexed, mixed, passages, tree_of, unit
from milvus_fixture import RunningMilvus
from patience import PATIENCE_S

from canopy_backend.errors import (
    DeadlineExceeded,
    EncoderMismatch,
    InvalidItem,
    InvalidRequest,
    LimitExceeded,
    RetrievalError,
)
from canopy_backend.items import TableItem, TextItem
from canopy_backend.tree import content_hash, decode_tree
from canopy_milvus import AsyncCorpus, Corpus, IndexedItem


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMilvus]:
    running = RunningMilvus(tmp_path_factory.mktemp("milvus")).start()
    yield running
    running.stop()


BACKENDS = ["lite", pytest.param("server", marks=pytest.mark.milvus_server)]


@pytest.fixture(scope="module", params=BACKENDS)
def uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "lite":
        return str(tmp_path_factory.mktemp("lite") / "corpus")
    return str(request.getfixturevalue("server").uri)


@pytest.fixture(scope="module")
def corpus(uri: str) -> Iterator[Corpus]:
    """Filled once, only read by the tests."""
    with Corpus.open(uri, "shared", revision=REVISION, dimension=DIMENSION, create=True) as opened:
        assert opened.upsert(mixed(), batch=5) == 26
        assert opened.count() == 26
        yield opened


@pytest.fixture
def texts(uri: str, request: pytest.FixtureRequest) -> Iterator[Corpus]:
    """An empty corpus of passages, dropped afterwards."""
    name = request.node.originalname
    with Corpus.open(uri, name, revision=REVISION, dimension=DIMENSION, create=True, modalities=["text"]) as opened:
        yield opened
        opened.drop()


def search_until_replaced(corpus: Corpus, query: npt.NDArray[np.float32]) -> None:
    """Search until the alias has moved, or as long as a test waits."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        corpus.search(query, 1, read_your_writes=True)


def test_search_merges_modalities_in_exact_order(corpus: Corpus) -> None:
    rows = mixed()
    for seed in range(5):
        query = unit(np.random.default_rng(100 + seed))
        hits = corpus.search(query, 10, read_your_writes=True)
        expected = exact(rows, query)[:10]
        assert ids(hits) == [name for name, _ in expected]
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-5)
        assert all(hit.modality == hit.item.modality for hit in hits)


def test_hits_carry_the_item_and_a_tree_that_fits_it(corpus: Corpus) -> None:
    by_id = {row.item.id: row for row in mixed()}
    hits = corpus.search(unit(np.random.default_rng(1)), 26)
    assert sorted(ids(hits)) == sorted(by_id)
    for hit in hits:
        assert hit.item.tree == by_id[hit.item.id].tree
        decode_tree(hit.item.tree, item=hit.item, revision=REVISION)


def test_a_query_longer_than_its_unit_vector_finds_the_same(corpus: Corpus) -> None:
    query = unit(np.random.default_rng(2))
    assert ids(corpus.search(query * 7, 5)) == ids(corpus.search(query, 5))


def test_modalities_narrow_the_search(corpus: Corpus) -> None:
    query = unit(np.random.default_rng(3))
    assert {hit.modality for hit in corpus.search(query, 26, modalities=["table", "image"])} == {"table", "image"}
    assert corpus.search(query, 5, modalities=[]) == []


@pytest.mark.parametrize("odd", ODD_IDS)
def test_ids_of_any_content(corpus: Corpus, odd: str) -> None:
    query = unit(np.random.default_rng(4))
    assert [item.id for item in corpus.get([odd])] == [odd]
    assert odd not in ids(corpus.search(query, 26, exclude_ids=[odd]))
    assert ids(corpus.search(query, 26, source=odd)) == [odd]
    assert set(corpus.existing([odd, odd + "x"])) == {odd}


def test_excluded_ids_make_room_for_the_next(corpus: Corpus) -> None:
    query = unit(np.random.default_rng(5))
    ranked = ids(corpus.search(query, 26))
    assert ids(corpus.search(query, 5, exclude_ids=[*ranked[:3], "unknown"])) == ranked[3:8]
    assert corpus.search(query, 5, exclude_ids=ranked) == []


def test_get_keeps_the_order_of_the_ids(corpus: Corpus) -> None:
    assert [item.id for item in corpus.get(["t1", "p3", "nope", "v0", "p3"])] == ["t1", "p3", "v0"]
    assert corpus.get([]) == []


def test_unchanged_items_are_told_from_changed_ones(corpus: Corpus) -> None:
    items = passages(4)
    items[1] = TextItem(id="p1", source="elsewhere", text="Passage number 1. It tells of word1.")
    items[2] = TextItem(id="p2", source="s2", text="Something else.")
    assert corpus.unchanged([*items, TextItem(id="new", text="x")]) == {"p0", "p3"}
    hashes = corpus.existing(["p0", "p2"])
    assert hashes["p0"] == content_hash(items[0])
    assert hashes["p2"] != content_hash(items[2])


@pytest.mark.parametrize(
    ("vector", "options", "error"),
    [
        (np.ones(DIMENSION - 1), {}, InvalidRequest),
        (np.full(DIMENSION, np.nan), {}, InvalidRequest),
        (np.zeros(DIMENSION), {}, InvalidRequest),
        (np.ones(DIMENSION), {"k": 0}, InvalidRequest),
        (np.ones(DIMENSION), {"k": 20_000}, LimitExceeded),
        (np.ones(DIMENSION), {"query_text": "  "}, InvalidRequest),
        (np.ones(DIMENSION), {"deadline_s": -1.0}, DeadlineExceeded),
    ],
)
def test_bad_searches_are_refused(corpus: Corpus, vector: object, options: dict, error: type[Exception]) -> None:
    with pytest.raises(error):
        corpus.search(vector, **({"k": 3} | options))


def test_search_by_words_where_the_profile_has_it(corpus: Corpus) -> None:
    query = unit(np.random.default_rng(6))
    if not corpus.profile.bm25:
        with pytest.raises(RetrievalError, match="not supported by this profile"):
            corpus.search(query, 5, query_text="word7")
        return
    assert "p7" in ids(corpus.search(query, 3, query_text="word7"))
    assert "i0" in ids(corpus.search(query, 3, query_text="judoka"))
    nothing = corpus.search(query, 5, query_text="zzzzqqq")
    assert ids(nothing) == ids(corpus.search(query, 5))


async def test_eight_searches_at_once_agree_with_one_at_a_time(corpus: Corpus) -> None:
    queries = [unit(np.random.default_rng(200 + n)) for n in range(8)]
    alone = [ids(corpus.search(query, 5)) for query in queries]
    shared = AsyncCorpus(corpus)
    together = await asyncio.gather(*(shared.search(query, 5) for query in queries))
    assert [ids(hits) for hits in together] == alone


def test_writing_twice_changes_nothing(texts: Corpus) -> None:
    rows = indexed(passages(20))
    query = unit(np.random.default_rng(7))
    for _ in range(2):
        # An id that comes twice in one call counts once, and the later row wins.
        assert texts.upsert([IndexedItem(passages(1)[0], b"", rows[5].embedding), *rows], batch=50) == 20
        assert texts.count() == 20
        hits = texts.search(query, 20, read_your_writes=True)
        assert [(hit.item.id, round(hit.score, 4)) for hit in hits] == [(n, round(s, 4)) for n, s in exact(rows, query)]


def test_a_changed_item_replaces_its_old_self(texts: Corpus) -> None:
    old, new = indexed([TextItem(id="a", text="Old.")], 1)[0], indexed([TextItem(id="a", text="New.")], 2)[0]
    texts.upsert([old])
    texts.upsert([new])
    (hit,) = texts.search(new.embedding, 5, read_your_writes=True)
    assert (hit.item.text, round(hit.score, 4), texts.count()) == ("New.", 1.0, 1)


def test_writes_are_read_at_once_on_request(texts: Corpus) -> None:
    for number, row in enumerate(indexed(passages(5)), start=1):
        texts.upsert([row])
        hits = texts.search(row.embedding, 10, read_your_writes=True)
        assert (hits[0].item.id, len(hits)) == (row.item.id, number)
    texts.delete(["p4", "unknown"])
    assert len(texts.search(row.embedding, 10, read_your_writes=True)) == 4


async def test_writers_and_searches_at_once_lose_nothing(texts: Corpus) -> None:
    rows = indexed(passages(60))
    query = unit(np.random.default_rng(9))
    shared = AsyncCorpus(texts)
    writers = [shared.upsert(rows[start : start + 15], batch=5) for start in range(0, 60, 15)]
    searches = [shared.search(query, 5, deadline_s=PATIENCE_S) for _ in range(12)]
    done = await asyncio.gather(*writers, *searches)
    assert done[:4] == [15, 15, 15, 15]
    assert ids(await shared.search(query, 60, read_your_writes=True)) == [name for name, _ in exact(rows, query)]


def test_long_items_and_trees_come_back_whole(texts: Corpus) -> None:
    long = TextItem(id="long", title="日" * 5000, text="日本語の文です。" * 40_000)
    row = indexed([long])[0]
    assert len(row.tree) > 1_000_000
    texts.upsert([row])
    (hit,) = texts.search(row.embedding, 1, read_your_writes=True)
    assert (hit.item.text, hit.item.title, hit.item.tree) == (long.text, long.title, row.tree)


def test_one_bad_row_is_named_and_the_corpus_goes_on(texts: Corpus) -> None:
    good = indexed(passages(3))
    for bad, field in (
        (IndexedItem(TextItem(id="b", text="x"), b"", np.full(DIMENSION, np.nan, np.float32)), "embedding"),
        (IndexedItem(TextItem(id="b", text="x"), b"", np.ones(3, np.float32)), "embedding"),
        (IndexedItem(TextItem(id="b\0", text="x"), b"", good[0].embedding), "id"),
        (IndexedItem(TextItem(id="b", text="x"), good[0].tree, good[0].embedding), "tree"),
    ):
        with pytest.raises(InvalidItem) as caught:
            texts.upsert([good[0], bad])
        assert caught.value.field == field
    with pytest.raises(LimitExceeded, match="max_source_bytes"):
        texts.upsert([IndexedItem(TextItem(id="b", source="日" * 2000, text="x"), b"", good[0].embedding)])
    with pytest.raises(RetrievalError, match="'table'"):
        texts.upsert(indexed([TableItem(id="t", columns=["a"], rows=[])]))
    assert texts.upsert(good) == 3
    assert texts.count() == 3


def test_another_encoder_is_refused_by_name(uri: str, texts: Corpus) -> None:
    with pytest.raises(EncoderMismatch, match=f"{REVISION} with 16.*{OTHER} with 16"):
        Corpus.open(uri, texts.name, revision=OTHER, dimension=DIMENSION)
    with pytest.raises(EncoderMismatch, match=f"{REVISION} with 16.*{REVISION} with 8"):
        Corpus.open(uri, texts.name, revision=REVISION, dimension=8)


def test_a_corpus_that_is_not_there_is_said_so(uri: str, corpus: Corpus) -> None:
    with pytest.raises(RetrievalError, match="no corpus 'absent'"):
        Corpus.open(uri, "absent", revision=REVISION, dimension=DIMENSION)


def test_a_new_version_takes_over_while_searches_run(uri: str, texts: Corpus) -> None:
    first, second = indexed(passages(10), 1), indexed(passages(10), 2)
    texts.upsert(first)
    query = first[0].embedding
    assert texts.search(query, 1, read_your_writes=True)[0].score == pytest.approx(1, abs=1e-4)
    options = {"revision": REVISION, "dimension": DIMENSION, "modalities": ["text"]}
    with Corpus.open(uri, texts.name, version=2, create=True, **options) as new:
        new.upsert(second)
        assert texts.search(query, 1, read_your_writes=True)[0].score == pytest.approx(1, abs=1e-4)
        new.publish()
        # The open corpus follows the alias: no search in between fails.
        until = time.monotonic() + PATIENCE_S
        while (best := texts.search(query, 1, read_your_writes=True)[0].score) > 0.99 and time.monotonic() < until:
            time.sleep(0.05)
        assert best == pytest.approx(exact(second, query)[0][1], abs=1e-4)
    with Corpus.open(uri, texts.name, version=1, **options) as old:
        assert old.count() == 10
        old.drop()
    assert texts.count() == 10


def test_rows_of_a_newer_encoder_are_never_mixed_in(uri: str, texts: Corpus) -> None:
    rows = indexed(passages(3))
    texts.upsert(rows)
    other = [IndexedItem(row.item, tree_of(row.item, OTHER), row.embedding) for row in rows]
    options = {"dimension": DIMENSION, "modalities": ["text"], "create": True}
    with Corpus.open(uri, texts.name, revision=OTHER, version=2, **options) as new:
        new.upsert(other)
        new.publish()
        with pytest.raises(EncoderMismatch, match=f"{OTHER}.*{REVISION}"):
            search_until_replaced(texts, rows[0].embedding)
    with Corpus.open(uri, texts.name, revision=REVISION, version=1, **(options | {"create": False})) as old:
        old.drop()


async def test_the_async_corpus_does_all_that_the_other_does(uri: str, texts: Corpus) -> None:
    rows = indexed(passages(4))
    options = {"revision": REVISION, "dimension": DIMENSION}
    async with await AsyncCorpus.open(uri, texts.name, **options) as corpus:
        assert await corpus.upsert(rows) == 4
        assert ids(await corpus.search(rows[2].embedding, 1, read_your_writes=True)) == ["p2"]
        assert set(await corpus.existing(["p1"])) == {"p1"}
        assert await corpus.unchanged([rows[0].item]) == {"p0"}
        await corpus.delete(["p0"])
        assert [item.id for item in await corpus.get(["p0", "p1"])] == ["p1"]
        assert await corpus.count() == 3
