"""What the Milvus at the other end can do, told from its version."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from canopy_backend.errors import RetrievalError

Kind: TypeAlias = Literal["lite", "server"]

_LITE = re.compile(r"milvus_lite-(\d+)\.(\d+)")
_SERVER = re.compile(r"v?(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Profile:
    """A deployment and its abilities.

    Attributes:
        kind: ``lite`` is a folder opened by this process; ``server`` is anything reached over the network.
        version: Version as the deployment reports it.
        bm25: Whether it can index words beside vectors.
        templates: Whether filters take values beside the expression.
        mmap: Whether a field can be left on disk by the schema.
    """

    kind: Kind
    version: str
    bm25: bool
    templates: bool
    mmap: bool

    def __str__(self) -> str:
        return f"Milvus Lite {self.version}" if self.kind == "lite" else f"Milvus {self.version}"


def detect(version: str) -> Profile:
    """The profile of a deployment that reports ``version``.

    Raises:
        RetrievalError: It is older than the oldest supported version, or not a version at all.
    """
    if lite := _LITE.match(version):
        number = (int(lite[1]), int(lite[2]))
        if number < (3, 2):
            raise RetrievalError(f"Milvus Lite {version!r} is too old: 3.2 is the oldest that is supported")
        return Profile("lite", version.removeprefix("milvus_lite-"), bm25=True, templates=False, mmap=False)
    server = _SERVER.match(version)
    if server is None:
        raise RetrievalError(f"Milvus reports version {version!r}, which is none that this client knows")
    number = (int(server[1]), int(server[2]))
    if number < (2, 3):
        raise RetrievalError(f"Milvus {version} is too old: 2.3 is the oldest that is supported")
    return Profile(
        "server",
        version.removeprefix("v"),
        bm25=number >= (2, 5),
        templates=number >= (2, 6),
        mmap=number >= (2, 5),
    )
