"""What the tests of items with pixels share."""

from __future__ import annotations

from pathlib import Path

import pytest

from canopy_export.qwen3vl.folder import chat_tokenizer
from canopy_export.qwen3vl.tiny_tokenizer import build_tokenizer


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save(str(folder / "tokenizer.json"))
    chat_tokenizer(folder / "tokenizer.json", "Be brief.").save(str(folder / "chat.json"))
    return folder / "chat.json"
