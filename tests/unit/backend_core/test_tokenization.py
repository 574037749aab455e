"""Tokenizers: nothing cut, nothing padded, windows that lose nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_backend.errors import ExportError
from canopy_backend.tokenization import EncoderTokenizer, TokenCounter, pad

tokens = st.lists(st.integers(5, 60), max_size=120)


def test_encodes_whole_texts_whatever_the_file_says(tokenizer):
    ids = tokenizer.encode(["judo", "judo " * 100, ""])
    assert [len(sequence) for sequence in ids] == [3, 102, 2]
    assert all([sequence[0]] == tokenizer.head and [sequence[-1]] == tokenizer.tail for sequence in ids)
    assert tokenizer.encode_plain(["judo", ""]) == [ids[0][1:-1], []]
    assert (tokenizer.window, tokenizer.room) == (32, 30)


def test_a_tokenizer_without_special_tokens(byte_tokenizer):
    assert (byte_tokenizer.head, byte_tokenizer.tail, byte_tokenizer.room) == ([], [], 32)
    assert len(byte_tokenizer.encode(["a judo"])[0]) == 4


@given(tokens, st.lists(st.integers(5, 60), max_size=25))
@settings(deadline=None, max_examples=60)
def test_windows_hold_every_token_once(tokenizer, ids, prefix):
    windows = tokenizer.windows(ids, prefix)
    assert all(len(window) <= tokenizer.window for window in windows)
    bodies = [window[1:-1] for window in windows]
    if tokenizer.repeats(prefix):
        assert all(body[: len(prefix)] == prefix for body in bodies)
        assert [token for body in bodies for token in body[len(prefix) :]] == ids
    else:
        assert [token for body in bodies for token in body] == prefix + ids


@pytest.mark.parametrize(("longest", "width"), [(0, 16), (16, 16), (17, 32), (256, 256), (257, 512)])
def test_pads_to_the_smallest_bucket(longest, width):
    ids, mask = pad([[7] * longest, [8]])
    assert ids.shape == mask.shape == (2, width)
    assert ids.dtype == mask.dtype == np.int64
    assert mask.sum(axis=1).tolist() == [longest, 1]
    assert ids[1].tolist() == [8] + [0] * (width - 1)
    assert (ids[0] == 7 * mask[0]).all()


def test_refuses_what_no_bucket_holds():
    with pytest.raises(ValueError, match="2049 tokens"):
        pad([[1] * 2049])


def test_knows_which_tokenizers_cut_at_spaces(tokenizer, byte_tokenizer):
    assert tokenizer.splits_at_space
    assert not byte_tokenizer.splits_at_space


awkward = st.text(st.sampled_from("ab1 .,\n\t\r\u00a0\u0301é中İß[]SEP🎉\u200d\x00\x1c"), max_size=20)


@given(awkward, awkward, st.sampled_from(" \n\t\r"))
@settings(deadline=None, max_examples=200)
def test_tokens_on_both_sides_of_a_space_are_independent(tokenizer, left, right, space):
    apart = [token for ids in tokenizer.encode_plain([left + space, right]) for token in ids]
    assert tokenizer.encode_plain([left + space + right])[0] == apart
    before = [token for ids in tokenizer.encode_plain([left, space + right]) for token in ids]
    assert before == apart


def test_counts_for_the_reader(wordpiece_file, byte_level_file):
    counter = TokenCounter(wordpiece_file)
    counts = counter.count(["judo was played", "", "judo " * 50])
    assert counts.dtype == np.int32
    assert counts.tolist() == [3, 0, 50]
    assert counter.name == wordpiece_file.parent.name
    assert TokenCounter(wordpiece_file, "reader").name == "reader"
    assert len(counter.revision) == 8
    assert counter.revision == TokenCounter(wordpiece_file).revision != TokenCounter(byte_level_file).revision
    assert counter.count([]).tolist() == []


def test_says_which_file_is_wrong(tmp_path, wordpiece_file):
    with pytest.raises(ExportError, match="no such file"):
        EncoderTokenizer(tmp_path / "tokenizer.json", 32)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ExportError, match=r"tokenizer\.json"):
        TokenCounter(tmp_path / "tokenizer.json")
    with pytest.raises(ExportError, match="no room"):
        EncoderTokenizer(wordpiece_file, 2)
