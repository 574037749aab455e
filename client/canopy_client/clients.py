"""The synchronous client of the evidence server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from canopy_backend.errors import CanopyError, InvalidRequest, Restricted
from canopy_backend.evidence import Evidence
from canopy_backend.limits import Limits
from canopy_client import identity, jobs
from canopy_client.calls import recorded
from canopy_client.channels import Tls, channel_options, check_target
from canopy_client.codec import RequestOptions, limits_from_config, pixels_from_config
from canopy_client.deadline import Deadline
from canopy_client.jobs import EncoderInfo, ItemLike, Job, Part, Results
from canopy_client.retry import RetryPolicy
from canopy_client.status import call_error
from canopy_milvus import IndexedItem

T = TypeVar("T")


class CanopyClient:
    """Client of the evidence server; safe to use from several threads.

    Args:
        url: ``host:port`` of the gRPC endpoint.
        deadline_s: Seconds that a call may take, retries and split requests included; ``None`` for no bound.
        tls: How to encrypt; ``None`` for plain text.
        retry: How often refused calls are sent again.
        channel: An open gRPC channel to use instead of a new one; it stays open at :meth:`close`.

    Raises:
        InvalidRequest: The address or a TLS file cannot be used.

    Every method raises :class:`canopy_backend.errors.CanopyError`: ``InvalidRequest`` and ``InvalidItem`` for bad
    input, ``LimitExceeded`` for a single item over a limit, ``EncoderMismatch`` for trees of another encoder,
    ``ServerUnavailable`` and ``Overloaded`` after the last attempt, ``DeadlineExceeded``.
    """

    def __init__(
        self,
        url: str = "localhost:8001",
        *,
        deadline_s: float | None = 30.0,
        tls: Tls | None = None,
        retry: RetryPolicy | None = None,
        channel: Any = None,
    ) -> None:
        self.url = check_target(url)
        self._deadline_s = deadline_s
        self._retry = retry or RetryPolicy()
        self._owned = channel is None
        if channel is None:
            channel = (
                grpc.insecure_channel(url, channel_options(url))
                if tls is None
                else grpc.secure_channel(url, tls.credentials(), channel_options(url))
            )
        self._channel = channel
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self._limits: Limits | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; calls in flight are cancelled."""
        if self._owned:
            self._channel.close()

    def compress(
        self,
        query: str,
        items: Sequence[ItemLike],
        *,
        keep_tables_whole: bool = False,
        trace: bool = False,
        deadline_s: float | None = None,
    ) -> list[Evidence]:
        """Keep of each item the regions that answer the query.

        Args:
            query: What the items were retrieved for.
            items: Items, or dicts of the same form; those with a ``tree`` are not encoded again.
            keep_tables_whole: Keep all rows of tables, for questions that count, rank or compare.
            trace: Fill ``Evidence.trace`` with every visited node.
            deadline_s: Seconds for this call instead of the client's.

        Returns:
            One evidence an item, in order; ``[]`` for no items, without a call.
        """
        jobs.require_text(query)
        deadline = self._deadline(deadline_s)
        _, payloads = jobs.prepare_items(items)
        if not payloads:
            return []
        limits = self._known_limits(deadline)
        job = jobs.compress_job(query, payloads, limits, keep_tables_whole=keep_tables_whole, trace=trace)
        return self._run(job, deadline)

    def index(self, items: Sequence[ItemLike], *, deadline_s: float | None = None) -> list[IndexedItem]:
        """Trees and retrieval vectors of items, in order, to be stored beside them.

        Args:
            items: Items, or dicts of the same form.
            deadline_s: Seconds for this call instead of the client's.
        """
        deadline = self._deadline(deadline_s)
        objects, payloads = jobs.prepare_items(items)
        if not objects:
            return []
        return self._run(jobs.index_job(objects, payloads, self._known_limits(deadline)), deadline)

    def embed_query(self, queries: Sequence[str], *, deadline_s: float | None = None) -> npt.NDArray[np.float32]:
        """Vectors of queries, float32 ``[n, D]``, comparable with those of :meth:`index`.

        Args:
            queries: Texts, none empty.
            deadline_s: Seconds for this call instead of the client's.
        """
        deadline = self._deadline(deadline_s)
        texts = jobs.require_texts(queries)
        if not texts:
            return jobs.stack([])
        return jobs.stack(self._run(jobs.embed_job(texts, self._known_limits(deadline)), deadline))

    def limits(self, *, deadline_s: float | None = None) -> Limits:
        """The limits that the server publishes, read again."""
        self._limits = limits_from_config(self._config(self._deadline(deadline_s)))
        return self._limits

    def sees_pixels(self, *, deadline_s: float | None = None) -> bool:
        """Whether the server's encoders see pictures of items; those that do not read captions and transcripts.

        False too where the server keeps its configuration to those who hold its key.
        """
        try:
            return pixels_from_config(self._config(self._deadline(deadline_s)))
        except Restricted:
            return False

    def encoder(self, *, deadline_s: float | None = None) -> EncoderInfo:
        """Which encoder the server runs, told by what it makes of a small item."""
        (indexed,) = self.index([jobs.CANARY], deadline_s=deadline_s)
        return jobs.encoder_info(indexed)

    def ready(self, *, deadline_s: float = 5.0) -> bool:
        """Whether the server answers a small request right now. Health endpoints alone cannot tell."""
        job = jobs.canary_job()
        try:
            return len(self._send(job, job.parts[0], Deadline.after(deadline_s))) == 1
        except CanopyError:
            return False

    def _deadline(self, seconds: float | None) -> Deadline:
        return Deadline.after(self._deadline_s if seconds is None else seconds)

    def _config(self, deadline: Deadline) -> Any:
        request = pb.ModelConfigRequest(name="hierarchy")
        return self._call(self._stub.ModelConfig, lambda: request, deadline)

    def _known_limits(self, deadline: Deadline) -> Limits:
        try:
            return self._limits or self.limits(deadline_s=deadline.timeout_s("limits"))
        except Restricted:
            # The published ones; a server with smaller limits refuses by name, and calls are cut then.
            self._limits = Limits()
            return self._limits

    def _run(self, job: Job[T], deadline: Deadline) -> list[T]:
        """Send all parts, several at a time when there are several; the first error ends the call."""
        results: Results[T] = Results()
        with identity.request_id():
            self._parts(job, deadline, results)
        return results.in_order()

    def _parts(self, job: Job[T], deadline: Deadline, results: Results[T]) -> None:
        if len(job.parts) == 1:
            self._part(job, job.parts[0], deadline, results)
            return
        with ThreadPoolExecutor(jobs.PARALLEL, thread_name_prefix="canopy") as pool:
            # Each thread works in a copy of this context: the request's id, and the span that theirs are children of.
            futures: set[Future[None]] = {
                pool.submit(copy_context().run, self._part, job, part, deadline, results) for part in job.parts
            }
            try:
                while futures:
                    finished, futures = wait(futures, return_when=FIRST_COMPLETED)
                    for future in finished:
                        future.result()
            finally:
                for future in futures:
                    future.cancel()

    def _part(self, job: Job[T], part: Part, deadline: Deadline, results: Results[T]) -> None:
        """Send one part, or its halves, and theirs, until the server takes them: at most log2 of its size deep."""
        waiting = [part]
        while waiting:
            current = waiting.pop()
            try:
                results.put(current, self._send(job, current, deadline))
            except CanopyError as error:
                waiting.extend(job.after(current, error))

    def _send(self, job: Job[T], part: Part, deadline: Deadline) -> list[T]:
        def request() -> Any:
            return job.build(part, RequestOptions(timeout_us=deadline.timeout_us(), request_id=identity.current()))

        return job.read(part, self._call(self._stub.ModelInfer, request, deadline))

    def _call(self, method: Callable[..., Any], request: Callable[[], Any], deadline: Deadline) -> Any:
        def attempt() -> Any:
            timeout = deadline.timeout_s()
            message = request()
            with recorded(message, self.url) as context:
                try:
                    return method(message, timeout=timeout, **context)
                except grpc.RpcError as error:
                    raise call_error(error, self.url) from None
                except ValueError as error:
                    # All that gRPC says of a channel that was closed.
                    raise InvalidRequest(f"call to {self.url}: {error}") from None

        return self._retry.run(attempt, deadline)
