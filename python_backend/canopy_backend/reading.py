"""JSON that somebody else wrote: everything that reading it may raise, and how that is told."""

from __future__ import annotations

from typing import Final

import msgspec

#: What the decoder raises for bytes that are no JSON of the wanted form, whatever is wrong with them. Two of these are
#: no errors of its own: text that is not UTF-8, and values nested deeper than its stack.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)


def told(error: BaseException) -> str:
    """Such an error as the end of a sentence, without anything of the text that was read but a field's name."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not valid UTF-8 at byte {error.start}"
    if isinstance(error, UnicodeEncodeError):
        return f"character {error.start} cannot be written as UTF-8"
    return str(error)
