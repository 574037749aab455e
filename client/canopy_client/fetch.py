"""Pictures and clips behind URLs, fetched where items are made; a server never opens an address that an item names.

Only hosts that the operator lists are asked, over TLS unless plain HTTP is allowed. A name is resolved once, every
address that it has must be a public one, and the connection goes to the address that was checked, so a name that
changes its mind in between leads nowhere else. Redirects pass the same checks and are counted. Proxies of the
environment are not used: they would resolve the name again.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import httpx

from canopy_backend.errors import InvalidItem, InvalidRequest
from canopy_backend.items import ImageItem, Item, VideoItem
from canopy_backend.limits import Limits
from canopy_backend.pixels import with_clip, with_picture

IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/jpg", "image/webp"})
CLIP_TYPES: Final = frozenset({"video/mp4", "video/webm"})

_PORTS: Final = {"https": 443, "http": 80}
#: Addresses that carry an IPv4 address to wherever a gateway takes it: NAT64, 6to4, Teredo.
_GATEWAYS: Final = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")))
#: Shown of a URL in a message.
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class FetchRules:
    """What may be fetched.

    Attributes:
        hosts: Names that are asked, each for the default port of its scheme or with a port of its own
            (``images.example.org``, ``cdn.example.org:8443``); names below them are others.
        allow_http: Take plain HTTP too.
        max_bytes: Bytes of one answer.
        timeout_s: Seconds that one item may take: name, connection, redirects and content together.
        max_redirects: Redirects that are followed.
    """

    hosts: frozenset[str] = frozenset()
    allow_http: bool = False
    max_bytes: int = 64 * 1024 * 1024
    timeout_s: float = 60.0
    max_redirects: int = 3

    @classmethod
    def of_hosts(cls, text: str, *, allow_http: bool = False) -> FetchRules:
        """Rules with the hosts of a list with commas.

        Raises:
            InvalidRequest: One is no host name, for instance a whole URL.
        """
        hosts = frozenset(part.strip().lower() for part in text.split(",") if part.strip())
        for host in sorted(hosts):
            if not host.isascii() or any(mark in host for mark in "/@*?# "):
                raise InvalidRequest(f"picture host {host!r:.80}: give a name, with :port where it is no default one")
        return cls(hosts, allow_http)


def fill_pictures(items: Iterable[Item], rules: FetchRules, limits: Limits | None = None) -> Iterator[Item]:
    """The items, pictures and clips that their ``uri`` names fetched; those with pixels or without URL as they are.

    Must not be called where an event loop runs: use :func:`fetch` there.

    Args:
        items: Items in any order.
        rules: What may be fetched.
        limits: What an item may bring.

    Raises:
        InvalidItem: Field ``uri``: the address is not allowed, does not answer, or answers with something else; field
            ``image``: the picture cannot be decoded.
    """
    for item in items:
        if isinstance(item, ImageItem) and item.image is None and _is_url(item.uri):
            payload = asyncio.run(fetch(item.uri, IMAGE_TYPES, rules, item_id=item.id))
            yield with_picture(item, payload, limits)
        elif isinstance(item, VideoItem) and not item.frames and _is_url(item.uri):
            payload = asyncio.run(fetch(item.uri, CLIP_TYPES, rules, item_id=item.id))
            yield with_clip(item, payload, limits)
        else:
            yield item


async def fetch(
    url: str,
    types: frozenset[str],
    rules: FetchRules,
    *,
    item_id: str | None = None,
    field: str = "uri",
    verify: ssl.SSLContext | None = None,
) -> bytes:
    """The content behind a URL.

    Args:
        url: The address.
        types: Content types that are taken.
        rules: What may be fetched.
        item_id: Named by errors.
        field: Named by errors.
        verify: Authorities to trust; those of the environment where not given.

    Raises:
        InvalidItem: The address is not allowed, does not answer in time, or answers with something else.
    """
    shown = url[:_SHOWN]
    try:
        async with asyncio.timeout(rules.timeout_s):
            # Every wait is inside the one timeout above, whatever the server drips.
            transport = PinnedTransport(rules, verify)
            async with httpx.AsyncClient(transport=transport, timeout=None, trust_env=False) as client:  # noqa: S113
                return await _follow(client, httpx.URL(url), types, rules)
    except _Refused as error:
        reason = str(error)
    except TimeoutError:
        reason = f"took longer than {rules.timeout_s:g} s"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        reason = f"cannot be fetched ({error})"
    raise InvalidItem(f"{shown!r} {reason}", item_id=item_id, field=field) from None


class _Refused(Exception):
    """A rule was broken; says which."""


class PinnedTransport(httpx.AsyncBaseTransport):
    """Checks where a request goes, resolves its host once, and connects to exactly the address that was checked.

    Args:
        rules: What may be fetched.
        verify: Authorities to trust; those of the environment where not given.
    """

    def __init__(self, rules: FetchRules, verify: ssl.SSLContext | None = None) -> None:
        self._rules = rules
        self._inner = httpx.AsyncHTTPTransport(
            verify=verify or _authorities(), trust_env=False, limits=httpx.Limits(max_connections=1)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request whose ``Host`` header and server name stay those of its URL."""
        host, port = check_url(request.url, self._rules)
        address = await _public_address(host, port)
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        return await self._inner.handle_async_request(pinned)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._inner.aclose()


def check_url(url: httpx.URL, rules: FetchRules) -> tuple[str, int]:
    """Host and port of an allowed URL.

    Raises:
        _Refused: Scheme, host, port or credentials are not allowed.
    """
    if url.scheme not in _PORTS or (url.scheme == "http" and not rules.allow_http):
        raise _Refused(f"is not {'http or https' if rules.allow_http else 'https'}")
    if url.userinfo:
        raise _Refused("carries a user name; addresses with credentials are not fetched")
    host = url.raw_host.decode("ascii").lower()
    port = _PORTS[url.scheme] if url.port is None else url.port
    named = f"{host}:{port}"
    if named not in rules.hosts and not (host in rules.hosts and port == _PORTS[url.scheme]):
        known = ", ".join(sorted(rules.hosts)) or "none; set CANOPY_PICTURE_HOSTS"
        raise _Refused(f"leads to {named}, which is not among the allowed hosts ({known})")
    return host, port


@cache
def _authorities() -> ssl.SSLContext:
    """The authorities of the environment, which take some milliseconds to read."""
    return ssl.create_default_context()


async def _public_address(host: str, port: int) -> str:
    """The address to connect to, after every address that the name has was found to be public."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise _Refused(f"leads to {host}, which cannot be resolved ({error})") from None
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        if not is_public(address):
            raise _Refused(f"leads to {host}, which is at {address}, an address that is not public")
    if not addresses:
        raise _Refused(f"leads to {host}, which has no address")
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet and of one host."""
    try:
        place = ipaddress.ip_address(address)
    except ValueError:
        return False  # a scope, as link-local addresses have
    if isinstance(place, ipaddress.IPv6Address):
        if place.ipv4_mapped is not None:
            place = place.ipv4_mapped
        elif place.is_site_local or any(place in network for network in _GATEWAYS):
            return False
    return place.is_global and not (
        place.is_private
        or place.is_loopback
        or place.is_link_local
        or place.is_multicast
        or place.is_reserved
        or place.is_unspecified
    )


async def _follow(client: httpx.AsyncClient, url: httpx.URL, types: frozenset[str], rules: FetchRules) -> bytes:
    """The content at the end of at most so many redirects, each of which passes the transport's checks."""
    headers = {"Accept": ", ".join(sorted(types)), "Accept-Encoding": "identity"}
    for _ in range(rules.max_redirects + 1):
        async with client.stream("GET", url, headers=headers, follow_redirects=False) as response:
            if not response.has_redirect_location:
                return await _content(response, types, rules)
            url = url.join(response.headers["location"])
    raise _Refused(f"redirects more than {rules.max_redirects} times")


async def _content(response: httpx.Response, types: frozenset[str], rules: FetchRules) -> bytes:
    """The bytes of an answer that is what was asked for."""
    if response.status_code != httpx.codes.OK:
        raise _Refused(f"answers with status {response.status_code}")
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in types:
        raise _Refused(f"answers with content type {kind[:80]!r}; taken are {', '.join(sorted(types))}")
    coding = response.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise _Refused(f"answers in content encoding {coding[:80]!r}, which was not asked for")
    length = response.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > rules.max_bytes:
        raise _Refused(f"has {length[:20]} bytes, more than {rules.max_bytes}")
    content = bytearray()
    async for part in response.aiter_raw():
        content += part
        if len(content) > rules.max_bytes:
            raise _Refused(f"has more than {rules.max_bytes} bytes")
    return bytes(content)


def _is_url(uri: str) -> bool:
    return uri.lower().startswith(("http://", "https://"))
