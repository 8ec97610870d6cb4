"""Sends requests and repeats those that are safe to repeat. One connection per thread, kept alive."""
from __future__ import annotations

import http.client
import json
import random
import select
import socket
import threading
import time
import urllib.parse
from email.utils import parsedate_to_datetime
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple, Union

from .errors import ConnectionFailed, Problem

# Problems that the daemon answers before it has done anything.
NOTHING_DONE = {"TOO_MANY_REQUESTS", "DRAINING", "OVERLOADED", "TARGET_LOCKED", "QUEUE_FULL"}
FIRST_DELAY = 0.1
MAX_DELAY = 5.0


class Answer(NamedTuple):
    status: int
    body: Any


class Failure(NamedTuple):
    error: Union[Problem, ConnectionFailed]
    transient: bool
    may_have_happened: bool
    retry_after: float


class Transport:
    def __init__(self, url: str, api_key: str, timeout: float, retry_for: float, headers: Mapping[str, str]) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("url must be an address such as http://127.0.0.1:8080, not %r" % url)
        if not api_key or not api_key.isprintable() or " " in api_key:
            raise ValueError("api_key must be the text of a key")
        self.parts = parts
        self.base = parts.path.rstrip("/")
        self.timeout = timeout
        self.retry_for = retry_for
        self.headers: Dict[str, str] = {"Authorization": "Bearer " + api_key, **headers}
        self.local = threading.local()

    def request(self, method: str, path: str, body: Any = None, headers: Optional[Mapping[str, str]] = None,
                repeatable: bool = False, retry_for: Optional[float] = None) -> Answer:
        """`repeatable`: sending it twice has the effect of sending it once."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        limit = self.retry_for if retry_for is None else retry_for
        started = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            outcome = self._attempt(method, path, data, headers or {}, attempt)
            if isinstance(outcome, Answer):
                return outcome
            if not outcome.transient or (outcome.may_have_happened and not repeatable):
                raise outcome.error
            delay = backoff(attempt, outcome.retry_after)
            if time.monotonic() - started + delay > limit:
                raise outcome.error
            time.sleep(delay)

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.parts.scheme == "https" else http.client.HTTPConnection
        return kind(str(self.parts.hostname), self.parts.port, timeout=timeout)

    def _attempt(self, method: str, path: str, data: Optional[bytes], headers: Mapping[str, str],
                 attempt: int) -> Union[Answer, Failure]:
        sent = False
        try:
            connection = self._connection()
            sent = True
            given = {**self.headers, **headers}
            if data is not None:
                given["Content-Type"] = "application/json"
            connection.request(method, self.base + path, data, given)
            response = connection.getresponse()
            text = response.read()
            if response.will_close:
                self._drop()
            if 200 <= response.status < 300:
                return Answer(response.status, json.loads(text) if text else None)
            return refusal(response.status, text, response.getheader("Retry-After"), attempt)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._drop()
            message = "The server cannot be reached, or did not answer completely: %s" % (
                str(error) or type(error).__name__)
            return Failure(ConnectionFailed(message, sent, attempt), True, sent, 0.0)

    def _connection(self) -> http.client.HTTPConnection:
        connection: Optional[http.client.HTTPConnection] = getattr(self.local, "connection", None)
        # The server may have ended a connection that was idle: what is sent on it would be lost.
        if connection is not None and select.select([connection.sock], [], [], 0)[0]:
            self._drop()
            connection = None
        if connection is None:
            connection = self.connect(self.timeout)
            connection.connect()
            # Headers and body are two writes: without this the second waits for the acknowledgement of the first.
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.local.connection = connection
        return connection

    def _drop(self) -> None:
        connection = getattr(self.local, "connection", None)
        self.local.connection = None
        if connection is not None:
            connection.close()


def refusal(status: int, text: bytes, retry_after: Optional[str], attempt: int) -> Failure:
    error = Problem(status, parse_problem(text), attempt)
    seconds = retry_after_seconds(retry_after)
    may_have_happened = status >= 500 and error.code not in NOTHING_DONE
    return Failure(error, is_transient(error, seconds), may_have_happened, seconds)


def is_transient(error: Problem, retry_after: float) -> bool:
    """Whether the same request may succeed later. A full queue says so only with a Retry-After."""
    if error.code == "QUEUE_FULL":
        return retry_after > 0
    return error.status in (429, 502, 503, 504)


def backoff(attempt: int, retry_after: float = 0.0) -> float:
    """Between half and all of the delay, so that many clients do not return in the same moment."""
    delay = min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(attempt - 1, 10)) * random.uniform(0.5, 1.0)
    return retry_after + delay / 2 if retry_after > 0 else delay


def retry_after_seconds(text: Optional[str]) -> float:
    if text is None:
        return 0.0
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return float(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()))
    except (TypeError, ValueError):
        return 0.0


def parse_problem(text: bytes) -> Dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:  # a proxy's page: the status says what can be said
        return {}
    return body if isinstance(body, dict) else {}


def query(fields: Mapping[str, Any]) -> str:
    """`?status=ERROR,PAUSED&limit=50`, or an empty text."""
    pairs = [(name, query_value(value)) for name, value in fields.items() if value is not None]
    return "?" + urllib.parse.urlencode(pairs, quote_via=urllib.parse.quote) if pairs else ""


def query_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(time_text(value))


def time_text(value: Any) -> Any:
    """A datetime as ISO text; it must have a zone."""
    if hasattr(value, "isoformat") and hasattr(value, "tzinfo"):
        if value.tzinfo is None:
            raise ValueError("a time needs a zone: datetime.now(timezone.utc)")
        return value.isoformat()
    return value if isinstance(value, (str, dict, list, int, float)) else str(value)


def quote(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def without_none(fields: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: time_text(value) if name in TIMES else value for name, value in fields.items() if value is not None}


TIMES: Tuple[str, ...] = ("run_at", "until")
