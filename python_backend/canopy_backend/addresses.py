"""Addresses of settings: what may be shown of them, and the credentials that some of them carry."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

#: What hides a secret.
MASK: Final = "***"

#: User and password of an address with a scheme: up to the last ``@`` in front of its path.
_CREDENTIALS: Final = re.compile(r"(?s)\A(?P<scheme>[^:/?#]*://)(?P<user>[^/?#]*)@")
#: The same with a password that nobody encoded, whose slash would end it: rather too much is hidden than too little.
_HIDDEN: Final = re.compile(r"(?s)\A(?P<scheme>[^:/?#]*://).*@")
_QUERY: Final = re.compile(r"(?s)\?.*\Z")


def split_credentials(address: str) -> tuple[str, str, str]:
    """An address without its user and password, and these two, as they are meant; empty where it carries none."""
    found = _CREDENTIALS.match(address)
    if found is None:
        return address, "", ""
    user, _, password = found["user"].partition(":")
    return found["scheme"] + address[found.end() :], unquote(user), unquote(password)


def shown_address(address: str) -> str:
    """An address for people and logs: all in front of its last ``@`` is masked, and its query, where tokens stand.

    Anything without a scheme, such as a file's name or ``host:port``, is shown as it is.
    """
    if "://" not in address:
        return address
    return _QUERY.sub(f"?{MASK}", _HIDDEN.sub(rf"\g<scheme>{MASK}@", address))
