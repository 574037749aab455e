"""One connection to Milvus: a folder opened in this process, a server or a cluster; every call has an end."""

from __future__ import annotations

import concurrent.futures
import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from canopy_backend.addresses import shown_address, split_credentials
from canopy_backend.errors import DeadlineExceeded, InvalidRequest, RetrievalError
from canopy_milvus.driver import MilvusClient, MilvusException
from canopy_milvus.failures import NOT_LOADED, is_away, translate
from canopy_milvus.profile import detect

#: Calls of one connection that may be under way at once.
_WORKERS: Final = 16

#: Pauses between two tries of a call to a server that is away, in seconds.
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0

#: Calls that change a Milvus Lite folder. Lite loses or breaks its own files when two of them run at once.
_CHANGES: Final = frozenset(
    {
        "create_collection",
        "load_collection",
        "drop_collection",
        "create_alias",
        "alter_alias",
        "drop_alias",
        "upsert",
        "delete",
    }
)

#: Options of a channel into this process. The driver would ping every 10 s, which Lite's server takes for abuse: it
#: closes the connection under whoever waits for half a minute, with lines of gRPC's own on standard error.
_LITE_CHANNEL: Final = {
    "grpc.enable_http_proxy": 0,
    "grpc.keepalive_time_ms": 2**31 - 1,
    "grpc.keepalive_permit_without_calls": 0,
}

_lite_lock = threading.Lock()
_lite_changes = threading.Lock()
_lite_users: dict[str, int] = {}


class Connection:
    """A driver client with deadlines and our errors. Safe to use from many threads.

    Attributes:
        profile: What the deployment can do.
        address: Where it is, without credentials, for messages.
    """

    def __init__(self, uri: str, token: str, until: float) -> None:
        self._folder = None if "://" in uri else str(Path(uri).absolute())
        self.address = self._folder or shown_address(uri)
        if self._folder is None:
            uri, token = _apart(uri, token)
        self._pool = concurrent.futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="milvus")
        options: dict[str, Any] = {}
        if self._folder is not None:
            uri = _open_folder(self._folder)
            options["grpc_options"] = dict(_LITE_CHANNEL)
        try:
            self._client = self.run(
                lambda timeout: MilvusClient(uri, token=token, timeout=timeout, dedicated=True, **options),
                action="connect",
                until=until,
            )
            try:
                self.profile = detect(self.call("get_server_version", until=until))
            except BaseException:
                self._client.close()
                raise
        except BaseException:
            self._release()
            raise

    def call(self, method: str, collection: str | None = None, /, *, until: float, **arguments: Any) -> Any:
        """One call of the driver.

        Args:
            method: Name of the driver's method.
            collection: Collection or alias that it is about; loaded again if the server has unloaded it.
            until: End of the caller's patience on the monotonic clock, in seconds.
            arguments: The method's other arguments.

        Raises:
            ServerUnavailable: No server answers.
            DeadlineExceeded: ``until`` passed first.
            Overloaded: The server limits the rate.
            RetrievalError: Anything else that it refused.
        """
        return self.start(method, collection, until=until, **arguments)()

    def start(
        self, method: str, collection: str | None = None, /, *, until: float, **arguments: Any
    ) -> Callable[[], Any]:
        """Begin a call and return what waits for its answer; arguments and errors as in :meth:`call`."""
        function = getattr(self._client, method)
        if self._folder is not None and method in _CHANGES:
            function = _one_at_a_time(function)
        names = () if collection is None else (collection,)

        def work(timeout: float) -> Any:
            try:
                return function(*names, timeout=timeout, **arguments)
            except MilvusException as error:
                # A server that was restarted answers before it has its collections in memory again.
                if collection is None or error.code not in NOT_LOADED:
                    raise
            self._client.load_collection(collection, timeout=_left(until))
            return function(collection, timeout=_left(until), **arguments)

        return self._submit(_until_it_is_back(work, until), " ".join([method, *map(repr, names)]), until)

    def run(self, work: Callable[[float], Any], *, action: str, until: float) -> Any:
        """Run ``work(timeout_s)`` in a worker and wait for it until ``until`` at most."""
        return self._submit(work, action, until)()

    def close(self) -> None:
        """Close the connection; a folder can then be opened by another process."""
        self._client.close()
        self._release()

    def _submit(self, work: Callable[[float], Any], action: str, until: float) -> Callable[[], Any]:
        if until <= time.monotonic():
            raise DeadlineExceeded(f"{action} at {self.address}: no time left before the call")
        future = self._pool.submit(lambda: work(_left(until)))

        def wait() -> Any:
            try:
                return future.result(max(0.0, until - time.monotonic()))
            except concurrent.futures.TimeoutError:
                future.cancel()
                raise DeadlineExceeded(f"{action} at {self.address}: no answer in time") from None
            except Exception as error:
                raise translate(error, action=action, address=self.address) from error

        return wait

    def _release(self) -> None:
        # Workers that still wait for a dead server end by their own timeout; nobody waits for them here.
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._folder is not None:
            _close_folder(self._folder)


def _one_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` behind the lock that changes of Lite folders share."""

    def locked(*arguments: Any, **options: Any) -> Any:
        with _lite_changes:
            return function(*arguments, **options)

    return locked


def _until_it_is_back(work: Callable[[float], Any], until: float) -> Callable[[float], Any]:
    """``work`` that is begun again while the server is away; every call of this package may be repeated.

    The driver retries too, but gives up the moment that its new connection is refused, so that a server which is just
    starting would fail a call with most of its time left.
    """

    def patient(timeout: float) -> Any:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return work(timeout)
            except Exception as error:
                if not is_away(error) or until - time.monotonic() < 2 * pause:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            timeout = _left(until)

    return patient


def _left(until: float) -> float:
    """Timeout for the driver in seconds: a little less than is left, so that its own, more telling error wins."""
    left = until - time.monotonic()
    return max(0.05, left * 0.9, left - 1.0)


def _apart(uri: str, token: str) -> tuple[str, str]:
    """Address and credentials; the driver names whole addresses in its errors.

    Raises:
        InvalidRequest: User or password hold characters that would end the part in which they stand.
    """
    bare, user, password = split_credentials(uri)
    if "@" in bare:
        raise InvalidRequest("the address of Milvus: write special characters of user and password as %XX")
    return bare, token or (f"{user}:{password}" if password else user)


def _open_folder(folder: str) -> str:
    """Serve a Milvus Lite folder inside this process and return its local address."""
    from milvus_lite.server_manager import server_manager_instance

    path = Path(folder)
    if path.is_file():
        raise InvalidRequest(
            f"{folder!r} is a file; Milvus Lite keeps a corpus in a folder (old files are not readable)"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lite_lock:
        uri: str | None = server_manager_instance.start_and_get_uri(folder)
        if uri is None:
            if _is_locked(path):
                raise RetrievalError(
                    f"{folder!r} is open in another process; Milvus Lite allows one at a time: "
                    "stop that process, or set MILVUS_URI to a server"
                )
            raise RetrievalError(f"{folder!r} cannot be opened as a Milvus Lite folder")
        _lite_users[folder] = _lite_users.get(folder, 0) + 1
    return uri


def _close_folder(folder: str) -> None:
    """Stop serving a folder when its last user in this process leaves."""
    from milvus_lite.server_manager import server_manager_instance

    with _lite_lock:
        _lite_users[folder] -= 1
        if not _lite_users[folder]:
            del _lite_users[folder]
            server_manager_instance.release_server(folder)


def _is_locked(folder: Path) -> bool:
    """Whether some process holds the folder's lock."""
    try:
        handle = os.open(folder / "LOCK", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
