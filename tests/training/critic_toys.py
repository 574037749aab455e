"""A tiny chat model with random weights, and a made-up corpus of two-hop questions."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from canopy_backend.evidence import Evidence
from canopy_training.critic.states import GoldItem, Search, Searched

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_chat_model(folder: Path) -> Path:
    """A Llama of two layers that reads bytes; 4 query heads share 2 key heads, as in the critic's model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: place for place, token in enumerate([*special, *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
        pad_token_id=2, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def evidence(title: str, text: str = "") -> Evidence:
    text = text or f"{title} is a thing."
    return Evidence(
        item_id=f"id of {title}", modality="text", title=title, text=text, regions=[], unit="code_point", fragments=1,
        kept_fragments=1, tokens_in=9, tokens_kept=9, whole=True,
    )  # fmt: skip


def two_hops(name: str = "q", *, found: str = "A d1 d2 d3 B d4 d5 d6 d7 d8 d9 d10") -> Searched:
    """Gold A, which the question names, and B (bridge), which A's text names and which holds the answer."""
    texts = {"A": "A was made by B.", "B": "B lived in Lund."}
    titles = {"B": "B (person)"}

    def search(query: str, found: str) -> Search:
        return Search(query, [evidence(titles.get(one, one), texts.get(one, "")) for one in found.split()])

    return Searched(
        id=name,
        dataset="toys",
        question="Where did the maker of A live?",
        answer="Lund",
        gold=[GoldItem("A", "id of A", texts["A"]), GoldItem("B (person)", "id of B (person)", texts["B"])],
        first=search("Where did the maker of A live?", found),
        follow=[search("A", "A d1 d11"), search("B (person)", "B d12 A")],
        astray=search("d2", "d2 d13 d14"),
    )
