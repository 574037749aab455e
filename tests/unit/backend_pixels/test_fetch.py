"""Fetching against real servers on this machine: what is asked, where it leads, how much and how long is taken."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pixel_media import clip, file_of, gradient

from canopy_backend.errors import InvalidItem, InvalidRequest
from canopy_backend.items import ImageItem, TextItem, VideoItem
from canopy_backend.pixels import picture_of
from canopy_client import fetch as fetching
from canopy_client.fetch import CLIP_TYPES, IMAGE_TYPES, FetchRules, check_url, fetch, fill_pictures, is_public

PICTURE = file_of(gradient())


class Site(ThreadingHTTPServer):
    """A server whose answers are set by path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.asked: list[tuple[str, str]] = []
        self.port = self.server_address[1]

    def url(self, path: str, scheme: str = "http") -> str:
        return f"{scheme}://pictures.test:{self.port}{path}"

    def gives(self, path: str, content: bytes, status: int = 200, **headers: str) -> None:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            if "Content_Length" not in headers:
                handler.send_header("Content-Length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content)

        self.answers[path] = answer


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Host"]))
        self.server.answers[self.path](self)

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Site]:
    site = Site()
    if context is not None:
        site.socket = context.wrap_socket(site.socket, server_side=True)
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.shutdown()
        site.server_close()
        thread.join(5)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """A name service: for each name the answers of its first, second, ... question; the last is repeated."""
    table = {"pictures.test": [["127.0.0.1"]]}

    def getaddrinfo(host: str, port: int, *rest: Any, **options: Any) -> list[Any]:
        host = host.decode() if isinstance(host, bytes) else host
        if host not in table:
            if host.replace(".", "").isdigit():
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        answers = table[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        kinds = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in found]
        return [(kind, socket.SOCK_STREAM, 6, "", (address, port)) for kind, address in zip(kinds, found, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return table


@pytest.fixture
def site(names: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server that counts as public."""
    monkeypatch.setattr(fetching, "is_public", lambda address: address == "127.0.0.1" or is_public(address))
    with serving() as running:
        running.gives("/p.png", PICTURE, Content_Type="image/png")
        yield running


def rules(site: Site | None = None, **options: Any) -> FetchRules:
    hosts = {"pictures.test"} if site is None else {f"pictures.test:{site.port}"}
    return FetchRules(**{"hosts": frozenset(hosts), "allow_http": True, "timeout_s": 60.0, **options})


def get(url: str, allowed: FetchRules, types: frozenset[str] = IMAGE_TYPES, **options: Any) -> bytes:
    return asyncio.run(fetch(url, types, allowed, item_id="a", **options))


def refusal(url: str, allowed: FetchRules, **options: Any) -> str:
    with pytest.raises(InvalidItem) as caught:
        get(url, allowed, **options)
    assert (caught.value.item_id, caught.value.field) == ("a", "uri")
    assert repr(url[:200])[1:-1] in caught.value.reason
    return caught.value.reason


def test_items_get_what_their_urls_name(site: Site) -> None:
    pytest.importorskip("av", reason="PyAV is not installed")
    site.gives("/c.mp4", clip(12), Content_Type="video/mp4; codecs=avc1")
    items = [
        ImageItem(id="p", uri=site.url("/p.png")),
        VideoItem(id="c", duration_s=1, uri=site.url("/c.mp4")),
        ImageItem(id="local", caption="x", uri="pictures/p.png"),
        ImageItem(id="has", image=b"x", uri=site.url("/missing")),
        TextItem(id="t", text="x"),
    ]
    picture, film, *others = fill_pictures(items, rules(site))
    assert isinstance(picture, ImageItem)
    assert isinstance(film, VideoItem)
    assert picture.image == PICTURE
    found = picture_of(picture)
    assert found is not None
    assert np.array_equal(found, np.asarray(gradient()))
    assert (film.duration_s, [frame.at_s for frame in film.frames]) == (pytest.approx(12), [0.0, 10.0])
    assert others == items[2:]
    assert site.asked == [("/p.png", f"pictures.test:{site.port}"), ("/c.mp4", f"pictures.test:{site.port}")]


def test_a_picture_that_cannot_be_decoded_is_named(site: Site) -> None:
    site.gives("/p.png", PICTURE[:-60], Content_Type="image/png")
    with pytest.raises(InvalidItem, match=r"item \('p'\), field 'image'"):
        list(fill_pictures([ImageItem(id="p", uri=site.url("/p.png"))], rules(site)))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://pictures.test/p", "is not https"),
        ("ftp://pictures.test/p", "is not https"),
        ("file:///etc/passwd", "is not https"),
        ("https://other.test/p", "leads to other.test:443, which is not among the allowed hosts (pictures.test)"),
        ("https://sub.pictures.test/p", "not among the allowed hosts"),
        ("https://pictures.test.other.test/p", "not among the allowed hosts"),
        ("https://pictures.test:8443/p", "pictures.test:8443, which is not among"),
        ("https://user@pictures.test/p", "carries a user name"),
        ("https://pictures.test@other.test/p", "carries a user name"),
        ("https://127.0.0.1/p", "127.0.0.1:443, which is not among"),
        ("https://[::1]/p", "not among the allowed hosts"),
        ("https:///p", "is not https"),
        ("https://pictures.test:99999/p", "pictures.test:99999, which is not among"),
        ("https://pictures.test:x/p", "cannot be fetched"),
        ("https://pict ures.test/p", "not among the allowed hosts"),
        ("https://\ud800.test/p", "cannot be fetched"),
        ("https://pictures.test:0/p", "pictures.test:0, which is not among"),
        ("https://pictures.test./p", "not among the allowed hosts"),
        ("https://pictures.test%2eother.test/p", "not among the allowed hosts"),
        ("https://pictures.test%00.other.test/p", "not among the allowed hosts"),
        ("https://pictures.test\\@other.test/p", "carries a user name"),
        ("https://other.test#@pictures.test/p", "leads to other.test:443"),
        ("https://other.test?@pictures.test/p", "leads to other.test:443"),
        ("https://pictures.test/@other.test", "leads to pictures.test, which is at 127.0.0.1"),
        ("//pictures.test/p", "is not https"),
        ("https:pictures.test/p", "is not https"),
        ("data:image/png;base64,AA==", "is not https"),
        ("gopher://pictures.test/p", "is not https"),
        ("jar:https://pictures.test!/p", "is not https"),
        ("https://0x7f.1/p", "0x7f.1:443, which is not among"),
        ("https://2130706433/p", "2130706433:443, which is not among"),
        ("https://[::ffff:127.0.0.1]/p", "not among the allowed hosts"),
        ("https://[fe80::1%25eth0]/p", ""),
        ("https://\uff50ictures.other.test/p", "cannot be fetched"),
    ],
)
def test_addresses_outside_the_list_are_never_asked(names: object, url: str, words: str) -> None:
    if "\ud800" in url:
        with pytest.raises(InvalidItem, match=words):
            get(url, rules(allow_http=False))
    else:
        assert words in refusal(url, rules(allow_http=False))


def test_without_a_list_nothing_is_fetched() -> None:
    assert "none; set CANOPY_PICTURE_HOSTS" in refusal("https://pictures.test/p", FetchRules())


NOT_PUBLIC = """
    0.0.0.0 10.0.0.1 100.64.0.1 127.0.0.1 169.254.169.254 172.16.0.1 192.0.0.1 192.0.2.1 192.168.1.1 198.18.0.1
    203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255 :: ::1 ::ffff:10.0.0.1 ::ffff:127.0.0.1 64:ff9b::7f00:1
    64:ff9b:1::1 2002:7f00:1:: 2001:0:1:: 2001:db8::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1
    no-address
"""


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_addresses_that_are_not_public_are_refused(names: dict[str, list[list[str]]], address: str) -> None:
    assert not is_public(address)
    names["pictures.test"] = [["93.184.216.34", address]]
    reason = refusal("https://pictures.test/p", rules())
    assert f"is at {address}, an address that is not public" in reason


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_public_addresses_are_taken(address: str) -> None:
    assert is_public(address)


def test_a_name_that_changes_its_mind_leads_nowhere_else(site: Site, names: dict[str, list[list[str]]]) -> None:
    names["pictures.test"] = [["127.0.0.1"], ["127.0.0.9"]]
    assert get(site.url("/p.png"), rules(site)) == PICTURE
    assert names["pictures.test"] == [["127.0.0.9"]]  # asked once


def test_names_without_address_and_ports_without_server_are_named(
    site: Site, names: dict[str, list[list[str]]]
) -> None:
    assert "cannot be resolved" in refusal("https://gone.test/p", rules(hosts=frozenset({"gone.test"})))
    names["pictures.test"] = [[]]
    assert "has no address" in refusal("https://pictures.test/p", rules())
    names["pictures.test"] = [["127.0.0.1"]]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        allowed = rules(hosts=frozenset({f"pictures.test:{port}"}))
        assert "cannot be fetched" in refusal(f"http://pictures.test:{port}/p", allowed)


def test_redirects_pass_the_same_checks(site: Site, names: dict[str, list[list[str]]]) -> None:
    for step in range(3):
        site.gives(f"/{step}", b"", 302, Location=f"/{step + 1}")
    site.gives("/3", PICTURE, Content_Type="image/png")
    assert get(site.url("/0"), rules(site)) == PICTURE
    assert "redirects more than 2 times" in refusal(site.url("/0"), rules(site, max_redirects=2))
    site.gives("/out", b"", 301, Location="https://other.test/p")
    assert "leads to other.test:443, which is not among" in refusal(site.url("/out"), rules(site))
    site.gives("/file", b"", 301, Location="file:///etc/passwd")
    assert "is not http or https" in refusal(site.url("/file"), rules(site))
    names["inside.test"] = [["10.0.0.5"]]
    site.gives("/in", b"", 307, Location="http://inside.test/p")
    allowed = rules(site, hosts=frozenset({f"pictures.test:{site.port}", "inside.test"}))
    assert "inside.test, which is at 10.0.0.5" in refusal(site.url("/in"), allowed)
    site.gives("/loop", b"", 302, Location="/loop")
    asked = len(site.asked)
    assert "redirects more than 3 times" in refusal(site.url("/loop"), rules(site))
    assert len(site.asked) - asked == 4


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("http://10.0.0.5/p", "leads to 10.0.0.5:80, which is not among"),
        ("http://[::1]/p", "not among the allowed hosts"),
        ("http://[::ffff:169.254.169.254]/latest/meta-data", "not among the allowed hosts"),
        ("//other.test/p", "leads to other.test:80"),
        ("http://user:word@pictures.test/p", "carries a user name"),
        ("ftp://pictures.test/p", "is not http or https"),
        ("data:image/png;base64,AA==", "cannot be fetched"),
        ("http://pictures.test:22/p", "leads to pictures.test:22"),
        ("http://pictures.test:0/p", "leads to pictures.test:0"),
        ("http://[", "not among the allowed hosts"),
    ],
)
def test_redirects_lead_nowhere_else(site: Site, location: str, words: str) -> None:
    site.gives("/away", b"", 302, Location=location)
    assert words in refusal(site.url("/away"), rules(site))
    assert [path for path, _ in site.asked] == ["/away"]


def test_hosts_that_spell_an_inner_address_are_looked_at_as_addresses(names: dict[str, list[list[str]]]) -> None:
    """A list may hold any name; what it resolves to decides. A resolver reads all of these as 127.0.0.1."""
    for host in ("2130706433", "0x7f.1", "0x7f000001", "localhost", "127.1"):
        names[host] = [["127.0.0.1"]]
        reason = refusal(f"https://{host}/p", rules(hosts=frozenset({host})))
        assert "is at 127.0.0.1, an address that is not public" in reason


def test_one_private_address_among_public_ones_is_enough(names: dict[str, list[list[str]]]) -> None:
    for inner in ("10.0.0.1", "::ffff:10.0.0.1", "fd00::1", "64:ff9b::a00:1"):
        names["pictures.test"] = [["93.184.216.34", "2606:4700::1111", inner]]
        assert "not public" in refusal("https://pictures.test/p", rules())


def test_a_redirect_to_an_address_that_turned_private_is_refused(site: Site, names: dict[str, list[list[str]]]) -> None:
    site.gives("/0", b"", 302, Location="/p.png")
    names["pictures.test"] = [["127.0.0.1"], ["192.168.0.7"]]
    assert "is at 192.168.0.7, an address that is not public" in refusal(site.url("/0"), rules(site))


def test_answers_of_another_kind_are_refused(site: Site) -> None:
    site.gives("/html", b"<p>", Content_Type="text/html; charset=utf-8")
    assert "content type 'text/html'; taken are image/jpeg" in refusal(site.url("/html"), rules(site))
    site.gives("/none", PICTURE)
    assert "content type ''" in refusal(site.url("/none"), rules(site))
    assert "content type 'image/png'; taken are video/mp4" in refusal(site.url("/p.png"), rules(site), types=CLIP_TYPES)
    site.gives("/404", b"", 404, Content_Type="image/png")
    assert "answers with status 404" in refusal(site.url("/404"), rules(site))
    site.gives("/gzip", PICTURE, Content_Type="image/png", Content_Encoding="gzip")
    assert "content encoding 'gzip', which was not asked for" in refusal(site.url("/gzip"), rules(site))


def test_bytes_are_counted_whatever_is_announced(site: Site) -> None:
    size = len(PICTURE)
    assert get(site.url("/p.png"), rules(site, max_bytes=size)) == PICTURE
    assert f"has {size} bytes, more than {size - 1}" in refusal(site.url("/p.png"), rules(site, max_bytes=size - 1))

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "image/png")
        handler.end_headers()
        try:
            for _ in range(1000):
                handler.wfile.write(bytes(65536))
        except OSError:
            return

    site.answers["/endless"] = endless
    assert "has more than 100000 bytes" in refusal(site.url("/endless"), rules(site, max_bytes=100_000))
    site.gives("/short", PICTURE, Content_Type="image/png", Content_Length="99999")
    assert "cannot be fetched" in refusal(site.url("/short"), rules(site))


@pytest.mark.parametrize("part", ["headers", "content"])
def test_a_server_that_drips_is_left_in_time(site: Site, part: str) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        try:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n")
            handler.wfile.write(b"X: " if part == "headers" else b"\r\n")
            for _ in range(200):
                handler.wfile.write(b"x")
                time.sleep(0.05)
        except OSError:
            return

    site.answers["/drip"] = drip
    # Whoever waits to the end sees another answer.
    assert "took longer than 0.4 s" in refusal(site.url("/drip"), rules(site, timeout_s=0.4))


def test_proxies_of_the_environment_are_not_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert get(site.url("/p.png"), rules(site)) == PICTURE


def test_the_certificate_is_that_of_the_name_not_of_the_address(
    names: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fetching, "is_public", lambda address: True)
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=pictures.test", "-addext", "subjectAltName=DNS:pictures.test", "-keyout", key,
         "-out", certificate],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    asked: list[str | None] = []
    context.sni_callback = lambda connection, name, _: asked.append(name)
    trusted = ssl.create_default_context(cafile=str(certificate))
    with serving(context) as site:
        site.gives("/p.png", PICTURE, Content_Type="image/png")
        allowed = rules(site, allow_http=False)
        assert get(site.url("/p.png", "https"), allowed, verify=trusted) == PICTURE
        assert asked == ["pictures.test"]
        assert "certificate" in refusal(site.url("/p.png", "https"), allowed).lower()
        names["other.test"] = [["127.0.0.1"]]
        url = f"https://other.test:{site.port}/p.png"
        reason = refusal(url, rules(hosts=frozenset({f"other.test:{site.port}"})), verify=trusted)
        assert "certificate" in reason.lower()


def test_a_list_of_hosts_is_read_from_a_setting() -> None:
    found = FetchRules.of_hosts(" Images.Example.org, cdn.example.org:8443 ,", allow_http=True)
    assert found.hosts == {"images.example.org", "cdn.example.org:8443"}
    assert found.allow_http
    assert check_url(httpx.URL("https://IMAGES.example.org/x"), found) == ("images.example.org", 443)
    assert check_url(httpx.URL("http://cdn.example.org:8443/x"), found) == ("cdn.example.org", 8443)
    assert FetchRules.of_hosts("") == FetchRules()
    for text in ("https://images.example.org", "*.example.org", "user@example.org", "bücher.example"):
        with pytest.raises(InvalidRequest, match="picture host"):
            FetchRules.of_hosts(text)
