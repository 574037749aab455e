"""Addresses that items and settings name: where a picture would be fetched, and what is shown of an address."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

import httpx

from canopy_backend.addresses import shown_address, split_credentials
from canopy_backend.errors import InvalidItem, InvalidRequest
from canopy_client.fetch import IMAGE_TYPES, FetchRules, _Refused, check_url, fetch, is_public
from canopy_fuzz.kinds import Target

_RULES: Final = FetchRules(hosts=frozenset({"pictures.test", "cdn.test:8443"}), allow_http=True, timeout_s=5)
#: One input in so many goes the whole way, through the client.
_WHOLE: Final = 64


def urls(data: bytes) -> None:
    """A picture's address: whatever passes leads to a listed host, over a listed scheme, without credentials."""
    url = data.decode("utf-8", "surrogateescape")
    try:
        parsed = httpx.URL(url)
        host, port = check_url(parsed, _RULES)
    except (_Refused, httpx.InvalidURL, ValueError):
        parsed = None
    else:
        default = {"https": 443, "http": 80}[parsed.scheme]
        assert f"{host}:{port}" in _RULES.hosts or (host in _RULES.hosts and port == default)
        assert parsed.raw_host.decode().lower() == host
        # What the connection is made from: no port means the scheme's own.
        assert (parsed.port if parsed.port is not None else default) == port
        assert not parsed.userinfo
    if len(data) % _WHOLE == 0:
        _fetched(url)


def _fetched(url: str) -> None:
    """The same through the client, on a machine whose names all lead inside."""
    before = socket.getaddrinfo
    socket.getaddrinfo = _inside
    try:
        asyncio.run(fetch(url, IMAGE_TYPES, _RULES, item_id="a"))
    finally:
        socket.getaddrinfo = before


def _inside(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 80))]


def addresses(data: bytes) -> None:
    """An IP address as a resolver may give it, and the hosts of a setting."""
    text = data.decode("utf-8", "replace")
    is_public(text)
    rules = FetchRules.of_hosts(text)
    assert all(host and "/" not in host and "@" not in host for host in rules.hosts)


def credentials(data: bytes) -> None:
    """An address of a setting: what is shown of it holds neither user nor password."""
    url = data.decode("utf-8", "replace")
    bare, user, password = split_credentials(f"https://user:S3CRET-word@{url}")
    assert (user, password) != ("", "")
    assert "S3CRET-word" not in bare
    for address in (f"https://user:S3CRET-word@{url}", f"http://x/{url}?key=S3CRET-word"):
        assert "S3CRET-word" not in shown_address(address)


TARGETS: Final = (
    Target(
        name="urls",
        decodes="a picture's URL",
        run=urls,
        allowed=(InvalidItem,),
        max_len=128,
        seeds=lambda: [
            b"https://pictures.test/p",
            b"http://pictures.test:80/p?q#f",
            b"https://cdn.test:8443/",
            b"file:///etc/passwd",
            b"https://user@pictures.test/",
            b"https://pictures.test:0/",
            b"https://[::1]/",
            b"https://xn--pss.test/",
            "https://pictures。test/".encode(),
            b"https://pictures.test\\@evil.test/",
            b"https://pictures.test%2eevil.test/",
            b"//pictures.test",
        ],
        words=(
            b"https://",
            b"http://",
            b"pictures.test",
            b"cdn.test:8443",
            b"@",
            b":",
            b"\\",
            b"%00",
            b"%2e",
            b"[::ffff:",
            b"]",
            b"\x00",
            "\uff0e".encode(),
            b"\t",
        ),
    ),
    Target(
        name="addresses",
        decodes="resolved addresses, host lists",
        run=addresses,
        allowed=(InvalidRequest,),
        max_len=64,
        seeds=lambda: [
            b"93.184.216.34",
            b"::ffff:10.0.0.1",
            b"fe80::1%eth0",
            b"64:ff9b::7f00:1",
            b"a.test, b.test:8443",
            b"2002:7f00:1::",
        ],
        words=(b"::ffff:", b"%", b"::", b"127.0.0.1", b",", b":443"),
    ),
    Target(
        name="credentials",
        decodes="an endpoint with credentials",
        run=credentials,
        allowed=(),
        max_len=96,
        seeds=lambda: [b"host:1/v1", b"other@host/v1?x=y", b"[::1]:1/", b"/", b"a@b@c", b"\\@x"],
        words=(b"@", b"/", b"?", b"#", b"\\", b"//", b":", b"%40"),
    ),
)
