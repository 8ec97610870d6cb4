"""The live stream of events: reconnects by itself and continues behind the last message, so that every event arrives once."""
from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, cast

from .errors import ConnectionFailed, LeaseholdError
from .transport import Transport, backoff, query, refusal
from .types import Event, JobSummary


class StreamMessage(NamedTuple):
    """`kind` is `open`, `event`, `snapshot` or `reset`. Give `position` as `after` to continue behind this message."""

    kind: str
    position: str
    #: With `kind == "event"`.
    event: Optional[Event] = None
    #: With `kind == "snapshot"`: the jobs of the selection that have not ended, or the one job.
    jobs: Optional[List[JobSummary]] = None
    #: With `kind == "reset"`: events were lost to this reader, because of this.
    reason: Optional[str] = None


class Closed(Exception):
    pass


class EventStream(Iterator[StreamMessage]):
    """Iterate over it; `close()`, from any thread, ends the iteration. Also a context manager."""

    def __init__(self, transport: Transport, filters: Dict[str, Any], after: Optional[str] = None,
                 idle_timeout: float = 60.0, retry_for: float = float("inf")) -> None:
        self._transport = transport
        self._path = "/api/events/stream" + query(filters)
        self._position = after
        self._idle_timeout = idle_timeout
        self._retry_for = retry_for
        self._closed = threading.Event()
        self._connection: Optional[http.client.HTTPConnection] = None
        self._messages = self._run()

    def __enter__(self) -> "EventStream":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __next__(self) -> StreamMessage:
        return next(self._messages)

    def close(self) -> None:
        self._closed.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def set_timeout(self, seconds: float) -> None:
        """Of the next read."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(max(0.001, seconds))

    def _run(self) -> Iterator[StreamMessage]:
        opened = self._position is not None
        failures = 0
        lost_at = time.monotonic()
        while not self._closed.is_set():
            error: LeaseholdError = ConnectionFailed("The stream ended.", False, failures + 1)
            retry_after = 0.0
            try:
                for position, name, data in self._connect():
                    failures = 0
                    lost_at = time.monotonic()
                    self._position = position or self._position
                    message = to_message(name, data, self._position or "", opened)
                    opened = True
                    if message is not None:
                        yield message
            except Closed:
                return
            except Refused as refused:
                error, retry_after = refused.error, refused.retry_after
                if not refused.transient:
                    raise error from None
            except (OSError, http.client.HTTPException, ValueError) as caught:
                error = ConnectionFailed("The stream was lost: %s" % (str(caught) or type(caught).__name__), False, 1)
            finally:
                self._drop()
            failures += 1
            delay = backoff(failures, retry_after)
            if time.monotonic() - lost_at + delay > self._retry_for:
                raise error
            self._closed.wait(delay)

    def _connect(self) -> Iterator[Any]:
        transport = self._transport
        connection = self._connection = transport.connect(self._idle_timeout)
        headers = {**transport.headers, "Accept": "text/event-stream"}
        if self._position is not None:
            headers["Last-Event-ID"] = self._position
        connection.request("GET", transport.base + self._path, headers=headers)
        # A response of unknown length takes the socket out of the connection; `close` and timeouts need it there.
        sock = connection.sock
        response = connection.getresponse()
        connection.sock = sock
        if response.status != 200:
            failure = refusal(response.status, response.read(), response.getheader("Retry-After"), 1)
            raise Refused(failure.error, failure.transient, failure.retry_after)
        fields: Dict[str, str] = {}
        data: List[str] = []
        while not self._closed.is_set():
            line = response.readline()
            if not line:
                break
            text = line.decode().rstrip("\r\n")
            if text:
                name, _, value = text.partition(":")
                value = value[1:] if value.startswith(" ") else value
                if name == "data":
                    data.append(value)
                else:
                    fields[name] = value
            elif fields or data:
                yield fields.get("id"), fields.get("event", "message"), "\n".join(data)
                fields, data = {}, []
        if self._closed.is_set():
            raise Closed()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Refused(Exception):
    def __init__(self, error: LeaseholdError, transient: bool, retry_after: float) -> None:
        super().__init__(str(error))
        self.error = error
        self.transient = transient
        self.retry_after = retry_after


def to_message(name: str, data: str, position: str, opened: bool) -> Optional[StreamMessage]:
    if name == "ping":
        return None if opened else StreamMessage("open", position)
    if name == "closed":
        return None
    content = json.loads(data) if data else {}
    if name == "snapshot":
        return StreamMessage("snapshot", position, jobs=content["jobs"])
    if name == "reset":
        return StreamMessage("reset", position, reason=content.get("reason"))
    return StreamMessage("event", position, event=cast(Event, content))
