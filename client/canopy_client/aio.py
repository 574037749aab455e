"""The asynchronous client of the evidence server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
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


def open_channel(url: str, tls: Tls | None) -> Any:
    """A channel of the running event loop."""
    if tls is None:
        return grpc.aio.insecure_channel(url, channel_options(url))
    return grpc.aio.secure_channel(url, tls.credentials(), channel_options(url))


class AsyncCanopyClient:
    """:class:`canopy_client.CanopyClient` for coroutines; one client belongs to one event loop.

    Cancelling a call drops its requests; a model that is at work on one ends by the call's deadline. Arguments and
    errors are those of the sync client.
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
        self._tls = tls
        self._retry = retry or RetryPolicy()
        self._owned = channel is None
        self._channel = channel
        self._open_stub: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limits: Limits | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls in flight are cancelled."""
        channel, self._open_stub = self._channel, None
        if self._owned and channel is not None:
            self._channel = None
            await channel.close()

    async def compress(
        self,
        query: str,
        items: Sequence[ItemLike],
        *,
        keep_tables_whole: bool = False,
        trace: bool = False,
        deadline_s: float | None = None,
    ) -> list[Evidence]:
        """Keep of each item the regions that answer the query; see :meth:`CanopyClient.compress`."""
        jobs.require_text(query)
        deadline = self._deadline(deadline_s)
        _, payloads = jobs.prepare_items(items)
        if not payloads:
            return []
        limits = await self._known_limits(deadline)
        job = jobs.compress_job(query, payloads, limits, keep_tables_whole=keep_tables_whole, trace=trace)
        return await self._run(job, deadline)

    async def index(self, items: Sequence[ItemLike], *, deadline_s: float | None = None) -> list[IndexedItem]:
        """Trees and retrieval vectors of items, in order; see :meth:`CanopyClient.index`."""
        deadline = self._deadline(deadline_s)
        objects, payloads = jobs.prepare_items(items)
        if not objects:
            return []
        return await self._run(jobs.index_job(objects, payloads, await self._known_limits(deadline)), deadline)

    async def embed_query(self, queries: Sequence[str], *, deadline_s: float | None = None) -> npt.NDArray[np.float32]:
        """Vectors of queries, float32 ``[n, D]``; see :meth:`CanopyClient.embed_query`."""
        deadline = self._deadline(deadline_s)
        texts = jobs.require_texts(queries)
        if not texts:
            return jobs.stack([])
        return jobs.stack(await self._run(jobs.embed_job(texts, await self._known_limits(deadline)), deadline))

    async def limits(self, *, deadline_s: float | None = None) -> Limits:
        """The limits that the server publishes, read again."""
        self._limits = limits_from_config(await self._config(self._deadline(deadline_s)))
        return self._limits

    async def sees_pixels(self, *, deadline_s: float | None = None) -> bool:
        """Whether the server's encoders see pictures of items; see :meth:`CanopyClient.sees_pixels`."""
        try:
            return pixels_from_config(await self._config(self._deadline(deadline_s)))
        except Restricted:
            return False

    async def encoder(self, *, deadline_s: float | None = None) -> EncoderInfo:
        """Which encoder the server runs, told by what it makes of a small item."""
        (indexed,) = await self.index([jobs.CANARY], deadline_s=deadline_s)
        return jobs.encoder_info(indexed)

    async def ready(self, *, deadline_s: float = 5.0) -> bool:
        """Whether the server answers a small request right now. Health endpoints alone cannot tell."""
        job = jobs.canary_job()
        try:
            return len(await self._send(job, job.parts[0], Deadline.after(deadline_s))) == 1
        except CanopyError:
            return False

    def _stub(self) -> Any:
        # Made at the first call: a channel belongs to the loop that runs when it is opened.
        loop = asyncio.get_running_loop()
        if self._open_stub is not None and self._loop is not loop:
            raise InvalidRequest("this client was used in another event loop; make one client for each")
        if self._open_stub is None:
            self._loop = loop
            if self._channel is None:
                self._channel = open_channel(self.url, self._tls)
            self._open_stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._open_stub

    def _deadline(self, seconds: float | None) -> Deadline:
        return Deadline.after(self._deadline_s if seconds is None else seconds)

    async def _config(self, deadline: Deadline) -> Any:
        request = pb.ModelConfigRequest(name="hierarchy")
        return await self._call(self._stub().ModelConfig, lambda: request, deadline)

    async def _known_limits(self, deadline: Deadline) -> Limits:
        try:
            return self._limits or await self.limits(deadline_s=deadline.timeout_s("limits"))
        except Restricted:
            # The published ones; a server with smaller limits refuses by name, and calls are cut then.
            self._limits = Limits()
            return self._limits

    async def _run(self, job: Job[T], deadline: Deadline) -> list[T]:
        """Send all parts, several at a time when there are several; the first error ends the call."""
        results: Results[T] = Results()
        with identity.request_id():
            await self._parts(job, deadline, results)
        return results.in_order()

    async def _parts(self, job: Job[T], deadline: Deadline, results: Results[T]) -> None:
        if len(job.parts) == 1:
            await self._part(job, job.parts[0], deadline, results)
            return
        slots = asyncio.Semaphore(jobs.PARALLEL)

        async def part(one: Part) -> None:
            async with slots:
                await self._part(job, one, deadline, results)

        try:
            async with asyncio.TaskGroup() as group:
                for one in job.parts:
                    group.create_task(part(one))
        except ExceptionGroup as failed:
            # One call, one error: the group holds the first and those that failed with it.
            raise failed.exceptions[0] from None

    async def _part(self, job: Job[T], part: Part, deadline: Deadline, results: Results[T]) -> None:
        """Send one part, or its halves, and theirs, until the server takes them: at most log2 of its size deep."""
        waiting = [part]
        while waiting:
            current = waiting.pop()
            try:
                results.put(current, await self._send(job, current, deadline))
            except CanopyError as error:
                waiting.extend(job.after(current, error))

    async def _send(self, job: Job[T], part: Part, deadline: Deadline) -> list[T]:
        def request() -> Any:
            return job.build(part, RequestOptions(timeout_us=deadline.timeout_us(), request_id=identity.current()))

        return job.read(part, await self._call(self._stub().ModelInfer, request, deadline))

    async def _call(self, method: Callable[..., Any], request: Callable[[], Any], deadline: Deadline) -> Any:
        async def attempt() -> Any:
            timeout = deadline.timeout_s()
            message = request()
            with recorded(message, self.url) as context:
                try:
                    return await method(message, timeout=timeout, **context)
                except grpc.aio.AioRpcError as error:
                    raise call_error(error, self.url) from None

        return await self._retry.run_async(attempt, deadline)
