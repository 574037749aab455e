"""A WordPiece tokenizer of the BERT family, small enough to make for each session."""

import string

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from tokenizers.processors import TemplateProcessing

from canopy_backend.tokenization import EncoderTokenizer, TokenCounter

WORDS = ["the", "judo", "was", "in", "japan", "kano", "sport", "played", "##ed", "##s", "title", "cup", "gold"]


@pytest.fixture(scope="session")
def wordpiece_file(tmp_path_factory):
    letters = string.ascii_lowercase + string.digits
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *string.punctuation, *letters, *("##" + x for x in letters)]
    tokenizer = Tokenizer(WordPiece({piece: place for place, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[("[CLS]", tokenizer.token_to_id("[CLS]")), ("[SEP]", tokenizer.token_to_id("[SEP]"))],
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    # Files as published often ask for both; neither may reach the encoder.
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    path = tmp_path_factory.mktemp("encoder") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def byte_level_file(tmp_path_factory):
    """A byte-level tokenizer without special tokens, in which a space belongs to the word after it."""
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {piece: place for place, piece in enumerate([*alphabet, "Ġj", "Ġju", "ju"])}
    tokenizer = Tokenizer(BPE(vocabulary, [("Ġ", "j"), ("j", "u"), ("Ġj", "u")]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def tokenizer(wordpiece_file):
    return EncoderTokenizer(wordpiece_file, 32)


@pytest.fixture(scope="session")
def byte_tokenizer(byte_level_file):
    return EncoderTokenizer(byte_level_file, 32)


@pytest.fixture(scope="session")
def counter(wordpiece_file):
    return TokenCounter(wordpiece_file, "small")
