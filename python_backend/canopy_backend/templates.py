"""Every text that an encoder reads is built here, and nowhere else.

A title, a caption and a table's header stand in front of every node of their item, so a region is never read without
them. :data:`TEMPLATE_HASH` is part of the encoder revision: vectors of other templates are refused, not mixed.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Final

from canopy_backend.fragments import fragment, render
from canopy_backend.fragments.table import header_lines
from canopy_backend.items import Item, TableItem

#: Raised by hand when the rules below change in a way that the definitions do not show.
_VERSION: Final = "canopy-templates/1"
#: What stands in front of an item's content, a line each, empty ones left out, then the content's own form.
_DEFINITIONS: Final = {
    "query": "{query}",
    "text": "{title}\n{content}",
    "table": "{title}\n{caption}\n{header_rows}\n{columns}\n{separator}\n{rows}; cell | cell, break <br>, bar \\|",
    "video": "{title}\n{cues, one a line}",
    "image": "{title}\n{caption}",
}

#: 16 hex digits: blake2b of the version and the definitions.
TEMPLATE_HASH: Final = blake2b(json.dumps([_VERSION, _DEFINITIONS], sort_keys=True).encode(), digest_size=8).hexdigest()

#: What an encoder that reads chats is told about a query, and about a node.
QUERY_INSTRUCTION: Final = "Retrieve images or text relevant to the user's query."
NODE_INSTRUCTION: Final = "Represent the user's input."
#: What such an encoder reads where an input has neither text nor pixels.
NOTHING: Final = "NULL"


def chat_turns(instruction: str) -> tuple[str, str]:
    """What stands before and after the content of an encoder's input in chat form.

    The vector is the state of the last token, which is the line break behind the opened answer.

    Args:
        instruction: The system turn, :data:`QUERY_INSTRUCTION` or :data:`NODE_INSTRUCTION`.
    """
    head = f"<|im_start|>system\n{instruction}<|im_end|>\n<|im_start|>user\n"
    return head, "<|im_end|>\n<|im_start|>assistant\n"


def query_text(query: str) -> str:
    """What the query encoder reads: the query without white space around it."""
    return query.strip()


def node_text(item: Item, content: str) -> str:
    """What the node encoder reads for one node.

    Args:
        item: The node's item.
        content: The node's run, as :func:`canopy_backend.fragments.render` gives it; a table's with its header.
    """
    return "\n".join([part for part in (*_heading(item), content) if part])


def item_text(item: Item) -> str:
    """What the retrieval encoder reads for a whole item: the text of its root."""
    fragments = fragment(item)
    return node_text(item, render(item, fragments, 0, len(fragments)))


def prefix_text(item: Item) -> str:
    """What every node text of an item begins with: its title, and a table's caption and header."""
    parts = _heading(item)
    if isinstance(item, TableItem):
        parts.append(header_lines(item))
    return "\n".join(part for part in parts if part)


def _heading(item: Item) -> list[str]:
    """The lines above the content. An image's caption is its content."""
    return [item.title, item.caption] if isinstance(item, TableItem) else [item.title]
