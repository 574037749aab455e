"""Load on one server: perf_analyzer where it is found, else the built-in closed loop; one interface for both."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import load, workload
from canopy_backend.items import Item, encode_item
from canopy_client import CanopyClient
from canopy_client.codec import compress_request


class Generator:
    """Measures calls of one server.

    Args:
        client: Its client, for warm-up and for the built-in loop.
        folder: Where input files are written.
        program: perf_analyzer, or ``None``.
    """

    def __init__(self, client: CanopyClient, folder: Path, program: str | None) -> None:
        self.client = client
        self._folder, self._program = folder, program
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """What sends the requests, in words."""
        return load.name_of(self._program)

    def compress(self, query: str, items: Sequence[Item], *, in_flight: int, requests: int) -> load.Figures:
        """``compress`` of the same items for the same query."""
        for _ in range(2):
            self.client.compress(query, items)
        if self._program is None:
            return self._loop(lambda: self.client.compress(query, items), in_flight, requests)
        file = self._file()
        workload.write_compress_input(file, query, items)
        # The model that the client sends such items to.
        model = compress_request(query, [encode_item(item) for item in items]).model_name
        return self._perf(model, file, in_flight, requests)

    def index(self, items: Sequence[Item], *, in_flight: int, requests: int) -> load.Figures:
        """``index`` of the same items."""
        self.client.index(items)
        if self._program is None:
            return self._loop(lambda: self.client.index(items), in_flight, requests)
        file = self._file()
        workload.write_index_input(file, items)
        return self._perf("index", file, in_flight, requests)

    def embed_seen(self, query: str, *, in_flight: int, requests: int) -> load.Figures:
        """``embed_query`` of a query that the server's cache holds."""
        self.client.embed_query([query])
        if self._program is None:
            return self._loop(lambda: self.client.embed_query([query]), in_flight, requests)
        file = self._file()
        workload.write_query_input(file, [query])
        return self._perf("embed_query", file, in_flight, requests)

    def embed_new(self, queries: Sequence[str], *, in_flight: int, requests: int) -> load.Figures:
        """``embed_query`` of queries of which none comes twice, so that the server's cache answers none."""
        self.client.embed_query([self.new(queries[0])])
        if self._program is None:
            return self._loop(lambda: self.client.embed_query([self.new(queries[0])]), in_flight, requests)
        # Three windows of at least as many as are in flight, and what is sent between and after them.
        count = 20 * max(requests, in_flight)
        file = self._file()
        workload.write_query_input(file, [self.new(queries[place % len(queries)]) for place in range(count)])
        return self._perf("embed_query", file, in_flight, requests)

    def compress_new(self, query: str, items: Sequence[Item], *, requests: int) -> load.Figures:
        """``compress``, each time for a query that was not seen before, from the Python client, one at a time."""
        self.client.compress(self.new(query), items)
        return self._loop(lambda: self.client.compress(self.new(query), items), 1, requests)

    def new(self, query: str) -> str:
        """The query with a number that it never had."""
        with self._lock:
            return f"{query} ({next(self._numbers)})"

    def _loop(self, call: load.Call, in_flight: int, requests: int) -> load.Figures:
        return load.run_closed_loop(call, concurrency=in_flight, requests=max(requests, 2 * in_flight))

    def _perf(self, model: str, file: Path, in_flight: int, requests: int) -> load.Figures:
        program = self._program or ""
        return load.run_perf_analyzer(
            program, model=model, url=self.client.url, data=file, concurrency=in_flight, requests=requests
        )

    def _file(self) -> Path:
        return self._folder / "input.json"


@contextmanager
def generator(url: str, folder: Path) -> Iterator[Generator]:
    """A generator for the server at ``url``."""
    with CanopyClient(url, deadline_s=600) as client:
        yield Generator(client, folder, load.find_perf_analyzer())
