"""A byte-level BPE tokenizer of the family's form, trained on a page of text that stands here."""

from __future__ import annotations

from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

#: Chat markers and vision markers of the family, in the order of their ids.
SPECIAL_TOKENS: Final = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
#: Number of tokens besides the special ones: the 256 bytes and some merges.
_SIZE: Final = 400
#: Where the family's tokenizer cuts words: contractions, letters with one character before them, single digits,
#: punctuation with the line breaks behind it, line breaks, white space.
_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEXT: Final = """\
system
Represent the user's input.
user
Retrieve images or text relevant to the user's query.
assistant
The harbour of Lindisfall was built in 1872, when the railway reached the coast and the first cranes were shipped in.
Two lighthouses guide the ferries at night; the older one burns no oil today, but its lamp is kept in good order.
| year | ships | cargo |
| --- | --- | --- |
| 1901 | 210 | timber and stone |
| 1902 | 233 | timber, salt and grain |
<0.5 seconds> The camera moves along the quay. <10.5 seconds> A crane lifts a crate out of the ship.
What did the second lighthouse replace, who paid for it, and how long did the work take?
It isn't known who drew the plans; the council's minutes say they're lost, and we'll hardly find them again.
"""


def build_tokenizer() -> Tokenizer:
    """Train the tokenizer; the result depends on nothing but this file and the library."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_SIZE, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT.splitlines(keepends=True), trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer
