"""A file that is bytes in memory, for readers that take paths: writing real ones would be most of a run's time."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar


class InMemory(type(Path())):  # type: ignore[misc]
    """A path whose file holds :attr:`content`; one at a time, as targets run one input after the other."""

    content: ClassVar[bytes] = b""

    @classmethod
    def file(cls, name: str, content: bytes) -> InMemory:
        """A file of this name."""
        cls.content = content
        return cls(name)

    def read_bytes(self) -> bytes:
        """The content."""
        return self.content

    def open(self, *_: Any, **__: Any) -> BytesIO:  # type: ignore[override]
        """The content as a file."""
        return BytesIO(self.content)

    def stat(self, **_: Any) -> os.stat_result:
        """A regular file's status with the content's size."""
        return os.stat_result((0o100644, 0, 0, 1, 0, 0, len(self.content), 0, 0, 0))
