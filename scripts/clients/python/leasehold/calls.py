"""The durable calls of one run of a handler: named, ordered, stored by the server, and found again by the next run."""
from __future__ import annotations

import contextlib
import math
import re
import threading
import time
import traceback
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, NoReturn, Optional, Tuple

MAX_CALLS = 32767
MAX_NAME = 200
MAX_TEXT = 6000
GRACE = 0.05  # calls that threads make at the same time belong together

Stored = Dict[str, Any]
Place = Dict[str, Any]  # name, position, parallel: what every request of a call says about it
Send = Callable[[str, Mapping[str, Any]], Any]


class Stopped(Exception):
    """The work must end: 'cancel', 'pause', 'drain', 'budget', 'waiting' or 'lease lost'. Let it pass."""

    def __init__(self, reason: str) -> None:
        super().__init__("stopped: " + reason)
        self.reason = reason


class CallFailed(Exception):
    """A durable call that failed, in this run or in an earlier one, or that the server refused. `code` says why.

    `recoverable` False: the job is not retried. The error of a step's own code is its `__cause__` in the run that ran it.
    """

    def __init__(self, message: str, code: str, recoverable: Optional[bool] = False,
                 details: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(message)
        self.code = code
        self.recoverable = recoverable
        self.details = details


class Wait(NamedTuple):
    kind: str
    name: str
    until: Optional[str] = None
    left_ms: float = math.inf


class Calls:
    """`send` posts below the lease; `pause` sleeps in the process, and raises Stopped when the run must end, which `stop`
    decides."""

    def __init__(self, send: Send, pause: Callable[[float], None], stop: Callable[[str], None],
                 release_lane: bool) -> None:
        self._send = send
        self._pause = pause
        self._stop = stop
        self._requested: Optional[str] = None  # a stop that the last answer told of, before a heartbeat does
        self._release_lane = release_lane
        self._lock = threading.Lock()  # never held during a request
        self._loading = threading.Lock()
        self._stored: Optional[Dict[str, Stored]] = None
        self._names: Dict[str, None] = {}
        self._unnamed: Dict[str, int] = {}
        self._open = 0
        self._parallel = False  # then the order of calls is not compared
        self._waits: List[Wait] = []
        self._suspended = False
        self._refused: Optional[CallFailed] = None
        self._failures: List[Dict[str, Any]] = []  # of steps that failed, while no call was made since
        self._errors: List[Tuple[BaseException, Place]] = []
        self.unanswered: Dict[str, None] = {}

    def number(self, what: str) -> int:
        with self._lock:
            self._unnamed[what] = self._unnamed.get(what, 0) + 1
            return self._unnamed[what]

    def numbered(self, what: str) -> str:
        """The name of a call without one: sleep#1."""
        return "%s#%d" % (what, self.number(what))

    @contextlib.contextmanager
    def call(self, kind: str, name: str) -> Iterator[Tuple[Place, Optional[Stored]]]:
        place = self._take_place(name)
        try:
            stored = self._load()
            self._check_order(kind, place, stored)
            self._store_failures()
            self.stop_if_requested()
            yield place, stored.get(name)
        finally:
            with self._lock:
                self._open -= 1

    def stop_if_requested(self) -> None:
        """Nothing begins once a stop was requested."""
        if self._requested is not None:
            self._stop(self._requested)
            self._pause(0)

    def _save(self, steps: List[Dict[str, Any]]) -> None:
        self._requested = self._send("steps", {"steps": steps}).get("cancel_intent")

    def _take_place(self, name: str) -> Place:
        if not 1 <= len(name) <= MAX_NAME:
            raise ValueError("a name has 1 to %d characters" % MAX_NAME)
        self._pause(0)
        with self._lock:
            if not self._suspended:
                if name in self._names:
                    raise CallFailed('"%s" was called twice in one run; number such calls with a key.' % name,
                                     "STEP_NAME_TWICE")
                if len(self._names) >= MAX_CALLS:
                    raise ValueError("a run makes at most %d durable calls" % MAX_CALLS)
                place = {"name": name, "position": len(self._names), "parallel": self._open > 0}
                self._parallel = self._parallel or self._open > 0
                self._names[name] = None
                self._open += 1
                return place
        self._wait_for_stop()

    def _load(self) -> Dict[str, Stored]:
        with self._loading:
            if self._stored is None:
                calls: List[Stored] = []
                after: Optional[str] = ""
                while after is not None:
                    answer = self._load_part(after)
                    calls += answer["calls"]
                    after = answer.get("next")
                self._requested = answer.get("cancel_intent")
                calls.sort(key=lambda call: call["position"])
                self._parallel = self._parallel or any(call["parallel"] for call in calls)
                self._stored = {call["name"]: call for call in calls}
            return self._stored

    def _load_part(self, after: str) -> Any:
        try:
            return self._send("calls", {"after": after})
        except CallFailed as error:
            if after != "" or error.code != "INVALID_FIELD":
                raise
            # A daemon of an older version does not know the field, and answers with all calls.
            return self._send("calls", {})

    def _check_order(self, kind: str, place: Place, stored: Mapping[str, Stored]) -> None:
        own = stored.get(place["name"])
        position: int = place["position"]
        if own is not None and own["kind"] != kind:
            raise order_changed(position, own, kind, place)
        if self._parallel or (own is not None and own["position"] == position):
            return
        for there in stored.values():
            if there["kind"] != "phase" and there["position"] == position:
                raise order_changed(position, there, kind, place)
        if own is not None:
            raise order_changed(own["position"], own, kind, place)

    def completed(self, place: Place, started: float, tries: int, result: Any) -> None:
        self._save([dict(place, status="completed", result=result, tries=tries, ms=since(started))])

    def failed(self, place: Place, started: float, tries: int, error: BaseException) -> CallFailed:
        """What the call raises, now and in later runs. It is stored if the handler catches it."""
        told = to_error(error)
        recoverable = getattr(error, "recoverable", None)
        if recoverable is not None:
            told["disposition"] = "recoverable" if recoverable else "fatal"
        with self._lock:
            self._failures.append(dict(place, status="failed", error=told, tries=tries, ms=since(started)))
        if isinstance(error, CallFailed):
            return self.remember(error, place)
        failure = self.remember(rebuild(told), place)
        failure.__cause__ = error
        return failure

    def raise_if_failed(self, place: Place, stored: Optional[Stored]) -> None:
        """Raises what the call ended with in an earlier run, if that caught it."""
        if stored is not None and stored["status"] == "failed" and stored["error"] is not None:
            raise self.remember(rebuild(stored["error"]), place)

    def remember(self, error: CallFailed, place: Place) -> CallFailed:
        """If the run fails with this error, the next one makes the call again."""
        self._errors.append((error, place))
        return error

    def _store_failures(self) -> None:
        """The handler has caught these failures, so later runs must take the same path."""
        with self._lock:
            failures, self._failures = self._failures, []
        if failures:
            self._save(failures)

    def reopen(self, error: BaseException) -> None:
        """For a run that failed with the error of a call that is stored as failed: the next run makes it again."""
        for known, place in self._errors:
            if known is error and all(failure["name"] != place["name"] for failure in self._failures):
                self._save([dict(place, status="pending", tries=0, ms=0)])
                return

    def check_complete(self, first_run: bool) -> None:
        """For a run that has returned: fails if an earlier run made a call that this one did not."""
        known = self._stored
        if known is None and not first_run:
            known = self._load()
        for name, stored in (known or {}).items():
            done = stored["kind"] != "phase" or stored["status"] in ("completed", "partial")
            if done and name not in self._names:
                what = "completed the phase" if stored["kind"] == "phase" else "made the durable call"
                raise CallFailed('An earlier run %s "%s"; this run ended without it.' % (what, name), "STEP_MISSING")

    def suspend(self, wait: Wait) -> NoReturn:
        """Ends the attempt. Calls of other threads end first, so that what they did is stored."""
        with self._lock:
            self._waits.append(wait)
        while not self._suspended:
            self._pause(GRACE)
            with self._lock:
                if self._suspended or self._waits[0] is not wait or self._open != len(self._waits):
                    continue
                self._suspended = True
            try:
                self._store_failures()
                self._send("suspend", self._suspension())
            except CallFailed as error:
                self._refused = error
        self._wait_for_stop()

    def _suspension(self) -> Dict[str, Any]:
        """Of several waits the earliest wakes the job; people are shown one that is no sleep."""
        first = min(self._waits, key=lambda wait: wait.left_ms)
        awaited = [wait.name for wait in self._waits if wait.kind != "sleep"]
        body: Dict[str, Any] = {"call": (awaited or [first.name])[0], "release_lane": self._release_lane}
        if awaited:
            body["calls"] = awaited
        if first.until is not None:
            body["until"] = first.until
        return body

    def _wait_for_stop(self) -> NoReturn:
        while self._refused is None:
            self._pause(GRACE)
        raise self._refused


def order_changed(position: int, stored: Stored, kind: str, place: Place) -> CallFailed:
    return CallFailed('Call %d of an earlier run was the %s "%s"; this run called the %s "%s".'
                      % (position + 1, stored["kind"], stored["name"], kind, place["name"]), "STEP_ORDER_CHANGED")


def rebuild(error: Mapping[str, Any]) -> CallFailed:
    recoverable = {"recoverable": True, "fatal": False}.get(str(error.get("disposition")))
    return CallFailed(error["message"], error["code"], recoverable, error.get("details"))


def to_error(error: BaseException) -> Dict[str, Any]:
    """As it is stored: the code is that of the error if it looks like one, or the name of its class."""
    cause = error.__cause__ if isinstance(error, CallFailed) else None
    shown = cause or error
    name = type(shown).__name__
    code = getattr(error, "code", None)
    if not isinstance(code, str) or not (isinstance(error, CallFailed) or re.fullmatch("[A-Z][A-Z0-9_]{0,63}", code)):
        code = name
    stack = "".join(traceback.format_exception(type(shown), shown, shown.__traceback__))
    told: Dict[str, Any] = {
        "code": code, "message": storable(str(error) or name), "name": name, "stack": storable(stack)}
    details = getattr(error, "details", None)
    if isinstance(details, dict):
        told["details"] = details
    return told


def storable(text: str) -> str:
    """Postgres holds neither the character 0 nor half of a pair."""
    return text[:MAX_TEXT].replace("\0", "?").encode("utf-8", "replace").decode("utf-8")


def since(started: float) -> float:
    return (time.monotonic() - started) * 1000
