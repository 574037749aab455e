"""Pillow and PyAV, imported when they are needed: a server of text alone has neither."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from canopy_backend.errors import InvalidItem

_EXTRA: Final = "install canopy-triton[pixels]"


def pillow(item_id: str | None, field: str | None) -> Any:
    """The module ``PIL.Image``.

    Raises:
        InvalidItem: It is not installed; names the item that needs it.
    """
    return _import("PIL.Image", "Pillow", item_id, field)


def pyav(item_id: str | None, field: str | None) -> Any:
    """The module ``av``.

    Raises:
        InvalidItem: It is not installed; names the item that needs it.
    """
    return _import("av", "PyAV", item_id, field)


def _import(module: str, name: str, item_id: str | None, field: str | None) -> Any:
    try:
        return import_module(module)
    except ImportError:
        reason = f"its pixels cannot be read, because {name} is not installed here; {_EXTRA}"
        raise InvalidItem(reason, item_id=item_id, field=field) from None
