"""A tiny sentence encoder with random weights, and questions that it can learn to decide."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from canopy_backend.items import TableItem, TextItem
from canopy_training.data import Gold, Question

NOUNS = [f"n{place}" for place in range(24)]


def write_model(folder: Path, *, window: int = 64) -> Path:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *NOUNS, "is", "near", "far", ".", "|", "-", "title"]
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=128,
    )  # fmt: skip
    BertModel(config, add_pooling_layer=True).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [{"idx": i, "name": str(i), "path": path, "type": f"x.{kind}"} for i, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": window}))
    return folder


def question(seed: int) -> Question:
    """One item of 2 to 7 sentences, of which the one that says "near" is gold, which random weights do not know."""
    draw = random.Random(seed)
    asked, *others = draw.sample(NOUNS, 8)
    n = draw.randint(2, 7)
    place = draw.randrange(n)
    sentences = [f"{others[at]} is {'near' if at == place else 'far'} {others[-1]}. " for at in range(n)]
    start = sum(map(len, sentences[:place]))
    text = "".join(sentences).rstrip()
    gold = Gold(item_id=f"t{seed}", span=(start, start + 2))
    return Question(
        id=f"q{seed}", dataset="toy", split="train", question=f"where is {asked}?", answers=(), gold=(gold,), meta={},
        items=(TextItem(id=f"t{seed}", title="title", text=text),),
    )  # fmt: skip


def table_question(rows: int, *gold: int) -> Question:
    body = [[NOUNS[row % 24], "near"] for row in range(rows)]
    return Question(
        id="qt", dataset="tables", split="train", question="n1?", answers=(), meta={},
        gold=(Gold(item_id="r", rows=gold),), items=(TableItem(id="r", columns=["is", "far"], rows=body),),
    )  # fmt: skip


def text_question(text: str, *spans: tuple[int, int], title: str = "title") -> Question:
    return Question(
        id="qx", dataset="texts", split="train", question="n1?", answers=(), meta={},
        gold=tuple(Gold(item_id="x", span=span) for span in spans), items=(TextItem(id="x", title=title, text=text),),
    )  # fmt: skip
