r"""Filter expressions: the one place where a caller's words meet Milvus's expression language.

Servers from 2.6 on take values beside the expression. Lite and older servers do not parse the placeholders, so there
a value is written as a quoted literal. What is escaped in it is the smallest set that every one of these
parsers reads back unchanged: only quote, backslash and the three characters that end a literal early are escaped, all
other characters stand for themselves (``\u`` escapes are an error on Lite, and so are ``\b`` and ``\f``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

Operator: TypeAlias = Literal["==", "in", "not in"]

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


@dataclass(frozen=True, slots=True)
class Filter:
    """An expression and the values beside it, as the driver's calls take them.

    Attributes:
        expression: Text in Milvus's expression language; empty selects every row.
        parameters: Values of its placeholders; empty where the server takes none.
    """

    expression: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """The filter as keyword arguments of ``search``, ``query`` and ``delete``."""
        if self.parameters:
            return {"filter": self.expression, "filter_params": dict(self.parameters)}
        return {"filter": self.expression}


def quote(value: str) -> str:
    """``value`` as a literal that every supported server reads back unchanged."""
    return f'"{value.translate(_ESCAPES)}"'


def build(*conditions: tuple[str, Operator, str | Sequence[str]], templates: bool) -> Filter:
    """Join conditions by ``and``.

    Args:
        conditions: Field, operator and value; the value is a list for ``in`` and ``not in``.
        templates: Whether the server takes values beside the expression.
    """
    parts: list[str] = []
    parameters: dict[str, Any] = {}
    for place, (name, operator, value) in enumerate(conditions):
        if templates:
            parameters[f"p{place}"] = value if isinstance(value, str) else list(value)
            literal = f"{{p{place}}}"
        elif isinstance(value, str):
            literal = quote(value)
        else:
            literal = f"[{', '.join(map(quote, value))}]"
        parts.append(f"{name} {operator} {literal}")
    return Filter(" and ".join(parts), parameters)
