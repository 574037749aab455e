"""What a language model answers: verdicts, labels, corpora; and the names that its stand-in reads off texts."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from canopy_client import parsing
from canopy_client.classifier import label_of
from canopy_client.critic import parse_verdict
from canopy_client.router import ALL, parse_corpora
from canopy_client.titles import candidates
from canopy_fuzz.kinds import Target
from canopy_fuzz.targets.examples import ITEMS, evidence_of

_EVIDENCE: Final = evidence_of(ITEMS[0])


def verdicts(data: bytes) -> None:
    """A critic's answer, in lines or as JSON that was cut: one line a field, or no verdict."""
    verdict = parse_verdict(data.decode("utf-8", "replace"))
    if verdict is not None:
        values = (verdict.rationale, verdict.answer, verdict.missing, verdict.query)
        assert all(len(value.split("\n")) == 1 for value in values)
        assert not verdict.sufficient or (verdict.missing, verdict.query) == ("", "")


def labels(data: bytes) -> None:
    """A classifier's and a router's answer."""
    text = data.decode("utf-8", "replace")
    assert label_of(text) in ("aggregate", "lookup")
    chosen = parse_corpora(text)
    assert chosen
    assert chosen <= ALL
    parsing.json_object(text)


def names(data: bytes) -> None:
    """A kept text, of which names are followed."""
    text = data.decode("utf-8", "replace")
    found = candidates(text[:40], [replace(_EVIDENCE, text=text, title=text[-20:])], [])
    assert all(one.name for one in found)


TARGETS: Final = (
    Target(
        name="verdicts",
        decodes="a critic's answer",
        run=verdicts,
        allowed=(),
        seeds=lambda: [
            b'{"rationale":"a","answer":"b","sufficient":"no","missing":"c","query":"d"}',
            b"Sufficient: yes\nAnswer: Vail",
            b'```json\n{"sufficient": true, "query": ["a", {"b": null}]',
            b"**Sufficient?** = no\n- missing: x",
            b'{"query":[[[[[',
            b'{"sufficient":false,"missing":1e400,"query":"\\ud83d',
        ],
        words=(
            b"sufficient",
            b'"sufficient":',
            b'"query":',
            b"[[[[[[[[",
            b"{{{{",
            b"\\u",
            b"```",
            b": ",
            b"true",
            b"null",
            b'\\"',
            b"1e999",
        ),
    ),
    Target(
        name="labels",
        decodes="a classifier's, a router's answer",
        run=labels,
        allowed=(),
        max_len=200,
        seeds=lambda: [
            b'{"label":"lookup"}',
            b"aggregate.",
            b'{"corpora":["text","table"]}',
            b"text+video",
            b'{"corpora":{"a":[]}}',
            b"[[[",
        ],
        words=(b'"label":', b'"corpora":', b"lookup", b"aggregate", b"text", b"table", b"[[[[", b"{{{{"),
    ),
    Target(
        name="names",
        decodes="a kept text",
        run=names,
        allowed=(),
        max_len=200,
        seeds=lambda: [
            b"The Weir of Hale was built by Ann Vail in 1931. She left Kings Cross.",
            "Kan\u014d Jigor\u014d, of Edo's".encode(),
            b"A.B. C-D",
        ],
        words=(b"The ", b" of ", b"'s", b". ", b"Mc", b"\n", b"St. ", b"-"),
    ),
)
