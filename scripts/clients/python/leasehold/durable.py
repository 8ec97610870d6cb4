"""The functions of a worker's Work that make durable calls. What they lead to is stored and outlives the lease.

A call that has to wait for long ends the lease and raises Stopped("waiting"): let it pass. The handler runs again from the
top when the wait is over, here or in another worker, and its earlier calls return what is stored.
"""
from __future__ import annotations

import datetime
import json
import math
import random
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, TypeVar, Union

if TYPE_CHECKING or __package__:
    from .calls import CallFailed, Calls, Stopped, Stored, Wait, rebuild
else:  # run as a file
    from calls import CallFailed, Calls, Stopped, Stored, Wait, rebuild

T = TypeVar("T")
Item = TypeVar("Item")
# Seconds, a timedelta, or a text such as "90s", "3d" or "1h30m".
Duration = Union[float, datetime.timedelta, str]

# Shorter waits stay in the process: ending the attempt and claiming again costs about as much.
MAX_IN_PROCESS_MS = 2000
MAX_CHILDREN = 10000
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


class Event:
    """An event from outside."""

    def __init__(self, id: str, name: str, data: Any, received_at: str) -> None:
        self.id = id
        self.name = name
        self.data = data
        self.received_at = received_at


class Durable:
    def __init__(self, job: Mapping[str, Any], release_lane: bool) -> None:
        self._calls = Calls(self._send, self.sleep, self.stop, release_lane)
        self._usage: Dict[str, float] = dict(job.get("usage") or {}, tokens=job.get("tokens_used") or 0)
        self._counting = threading.Lock()
        self._steps = 0  # whose code runs now
        self._not_awaited: Dict[str, None] = {}

    def _send(self, call: str, body: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def stop(self, reason: str) -> None:
        raise NotImplementedError

    def _heard(self, beat: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def step(self, name: str, run: Callable[[], T], *, key: Union[str, int, None] = None, attempts: int = 1,
             delay: float = 1.0) -> T:
        """Runs the code once and stores what it returned, as JSON: a later run gets that. `key` numbers calls of one name.

        Raises CallFailed when no attempts are left, or for an error with `recoverable = False`.
        """
        with self._calls.call("step", name if key is None else "%s#%s" % (name, key)) as (place, stored):
            if stored is not None and stored["status"] == "completed":
                earlier: T = stored["result"]
                return earlier
            self._calls.raise_if_failed(place, stored)
            started = time.monotonic()
            tries = 1
            while True:
                try:
                    result: T = json_copy(self._run_step(run), place["name"])
                    break
                except Stopped:
                    raise
                except Exception as error:
                    self.sleep(0)  # a run that must stop does not fail
                    if tries >= attempts or getattr(error, "recoverable", None) is False:
                        raise self._calls.failed(place, started, tries, error)
                self.sleep(min(delay * 2 ** (tries - 1), 3600) * random.uniform(0.5, 1.0))
                tries += 1
            self._calls.completed(place, started, tries, result)
            return result

    def _run_step(self, run: Callable[[], T]) -> T:
        with self._counting:
            self._steps += 1
        try:
            return run()
        finally:
            with self._counting:
                self._steps -= 1

    def sleep_for(self, duration: Duration, *, name: Optional[str] = None) -> None:
        """In seconds, a timedelta, or a text such as "3d". A long sleep needs no lease and no worker."""
        self._sleep({"seconds": seconds_of(duration)}, name)

    def sleep_until(self, moment: Union[datetime.datetime, str], *, name: Optional[str] = None) -> None:
        """A datetime with a zone, or its text in ISO 8601."""
        if isinstance(moment, datetime.datetime):
            if moment.tzinfo is None:
                raise ValueError("sleep_until needs a time with a zone")
            moment = moment.isoformat(timespec="milliseconds")
        self._sleep({"until": moment}, name)

    def _sleep(self, end: Mapping[str, Any], name: Optional[str]) -> None:
        with self._calls.call("sleep", name or self._calls.numbered("sleep")) as (place, stored):
            wait = stored if stored is not None else self._send("sleep", dict(place, suspend=False, **end))
            left_ms = wait["left_ms"] or 0
            if left_ms > MAX_IN_PROCESS_MS:
                self._calls.suspend(Wait("sleep", place["name"], wait["until"], left_ms))
            if left_ms > 0:
                self.sleep(left_ms / 1000)

    def wait_for_event(self, event: str, *, match: Optional[Mapping[str, Any]] = None,
                       timeout: Optional[Duration] = None, name: Optional[str] = None) -> Optional[Event]:
        """Waits for an event of POST /api/events/{name}. None: none came within `timeout`."""
        limit = None if timeout is None else seconds_of(timeout)
        with self._calls.call("event", name or self._calls.numbered("event:" + event)) as (place, stored):
            if stored is not None and stored["status"] == "skipped":
                return None
            if stored is not None and stored["status"] == "completed":
                known = stored["result"]
                if known["name"] != event:
                    raise CallFailed('The durable call "%s" of an earlier run got the event "%s"; this run waits for "%s".'
                                     % (place["name"], known["name"], event), "STEP_ORDER_CHANGED")
                return Event(known["id"], known["name"], known["data"], known["receivedAt"])
            answer = self._send("event", without_none(dict(
                place, event=event, match=match, timeout_seconds=limit, suspend=False)))
            if answer["status"] == "over":
                came = answer["event"]
                return None if came is None else Event(came["id"], came["name"], came["data"], came["received_at"])
            left_ms = math.inf if answer["left_ms"] is None else answer["left_ms"]
            self._calls.suspend(Wait("event", place["name"], answer["until"], left_ms))

    def ask(self, title: str, *, name: Optional[str] = None, timeout: Optional[Duration] = None,
            **question: Any) -> Dict[str, Any]:
        """Asks a person. Returns the fields of the answer, and `action` if the question has actions.

        The question has the fields of the API: context, schema, actions, assignees, on_timeout, reminders, escalate_to. An
        action may be given by its name only; times are durations: timeout="2d", reminders=["4h"], escalate_to={"assignees":
        ["boss"], "after": "1d"}, or seconds as in the API: timeout_seconds, after_seconds.
        """
        asked = dict(question_fields(without_none(question)), title=title)
        if timeout is not None:
            if "timeout_seconds" in asked:
                raise TypeError("give timeout or timeout_seconds, not both")
            asked["timeout_seconds"] = seconds_of(timeout)
        with self._calls.call("question", name or self._calls.numbered("question")) as (place, stored):
            self._calls.unanswered[place["name"]] = None
            while True:
                state = question_state(stored) or self._send("ask", dict(asked, suspend=False, **place))
                if state["status"] == "open":
                    left_ms = state["left_ms"]
                    if left_ms > MAX_IN_PROCESS_MS:
                        self._calls.suspend(Wait("question", place["name"], state["expires_at"], left_ms))
                    self.sleep(max(0, left_ms / 1000))
                    continue
                self._calls.unanswered.pop(place["name"], None)
                if state["status"] == "failed":
                    raise self._calls.remember(rebuild(state["error"]), place)
                answer: Dict[str, Any] = dict(state["answer"])
                return answer if state["action"] is None else dict(answer, action=state["action"])

    def enqueue(self, type: str, payload: Any = None, *, key: Optional[str] = None, **options: Any) -> Dict[str, Any]:
        """Enqueues a child once: {"id", "unique"}. Options: queue, target_id, priority, run_at, max_attempts, unique, after."""
        place = str(self._calls.number("enqueue")) if key is None else "key:" + key
        child = dict(child_to_api(dict(options, type=type, payload=payload)), key=place)
        self._calls.stop_if_requested()
        answer = self._send("enqueue", child)
        if "unique" not in child:
            self._not_awaited[answer["job_id"]] = None
        return {"id": answer["job_id"], "unique": answer["unique"]}

    def fan_out(self, name: str, items: Sequence[Item], to_job: Callable[[Item], Mapping[str, Any]], *,
                concurrency: Optional[int] = None, all_settled: bool = False) -> List[Any]:
        """Enqueues one child per item, once, and returns what they returned. `to_job` returns type, payload, queue, target_id …

        `all_settled`: returns how each ended instead of raising CallFailed for the first that failed.
        """
        if len(items) > MAX_CHILDREN:
            raise ValueError("fan_out takes at most %d items" % MAX_CHILDREN)
        return self._children(name, len(items), all_settled, concurrency,
                              lambda: {"jobs": [fan_out_child(to_job(item)) for item in items]})

    def wait_for_children(self, *, name: Optional[str] = None, all_settled: bool = False) -> List[Any]:
        """Waits in the same way for what this run has enqueued since the last such call, in that order."""
        unnamed = self._calls.numbered("children")
        ids = list(self._not_awaited)
        self._not_awaited.clear()
        return self._children(name or unnamed, len(ids), all_settled, None, lambda: {"job_ids": ids})

    def _children(self, name: str, count: int, all_settled: bool, concurrency: Optional[int],
                  wanted: Callable[[], Mapping[str, Any]]) -> List[Any]:
        with self._calls.call("children", name) as (place, stored):
            if stored is not None and stored["status"] == "completed":
                earlier: List[Any] = stored["result"]
                return earlier
            self._calls.raise_if_failed(place, stored)
            started = time.monotonic()
            policy = {"on_failure": "continue" if all_settled else "stop", "concurrency": concurrency, "suspend": False}
            answer = self._send("children", without_none(dict(place, **policy, **(wanted() if stored is None else {}))))
            if answer["total"] != count:
                raise CallFailed('An earlier run waited in "%s" for %d children; this run has %d.'
                                 % (name, answer["total"], count), "STEP_ORDER_CHANGED")
            if answer["failed"] is not None and not all_settled:
                raise self._calls.failed(place, started, 1, child_failed(answer["failed"]))
            if answer["unfinished"] > 0 or answer["children"] is None:
                self._calls.suspend(Wait("children", place["name"]))
            results = [outcome(child) if all_settled else child["result"] for child in answer["children"]]
            self._calls.completed(place, started, 1, results)
            return results

    def add_usage(self, **usage: float) -> None:
        """Adds to what the job used over all attempts, in any unit: add_usage(tokens=120, cents=3).

        Call it within the step that used it. Above a budget the step is stored, and the next call raises Stopped.
        """
        for unit, amount in usage.items():
            if not (math.isfinite(amount) and amount >= 0):
                raise ValueError("%s must be a number from 0" % unit)
            if unit == "tokens" and amount != int(amount):
                raise ValueError("tokens must be a whole number from 0")
        with self._counting:
            for unit, amount in usage.items():
                self._usage[unit] = round(self._usage.get(unit, 0) + amount, 6)
        self._heard(self._send("heartbeat", self._used()))
        if self._steps == 0:
            self.sleep(0)

    def _used(self) -> Dict[str, Any]:
        """What a heartbeat says about usage: absolute amounts, so that it can be repeated."""
        with self._counting:
            units = {unit: amount for unit, amount in self._usage.items() if unit != "tokens"}
            tokens = int(self._usage["tokens"])
        return dict({"usage": units} if units else {}, **({"tokens_used": tokens} if tokens > 0 else {}))


def seconds_of(duration: Duration) -> float:
    if isinstance(duration, str):
        parts = DURATION_PART.findall(duration.replace(" ", ""))
        if "".join(value + unit for value, unit in parts) != duration.replace(" ", "") or not parts:
            raise ValueError('a duration is a number of seconds, a timedelta, or a text such as "90s", "3d" or "1h30m", not "%s"'
                             % duration)
        return sum(float(value) * UNITS[unit] for value, unit in parts)
    seconds = duration.total_seconds() if isinstance(duration, datetime.timedelta) else float(duration)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError("a duration is a number of seconds from 0, not %s" % duration)
    return seconds


def question_fields(question: Mapping[str, Any]) -> Dict[str, Any]:
    """The fields of the API. What is not as it should be stays: the server refuses it by name."""
    asked = dict(question)
    if isinstance(asked.get("actions"), (list, tuple)):
        asked["actions"] = [{"name": action} if isinstance(action, str) else action for action in asked["actions"]]
    if isinstance(asked.get("reminders"), (list, tuple)):
        asked["reminders"] = [seconds_of(reminder) for reminder in asked["reminders"]]
    if isinstance(asked.get("escalate_to"), Mapping) and "after" in asked["escalate_to"]:
        escalate = dict(asked["escalate_to"])
        if "after_seconds" in escalate:
            raise TypeError("give after or after_seconds, not both")
        escalate["after_seconds"] = seconds_of(escalate.pop("after"))
        asked["escalate_to"] = escalate
    return asked


def json_copy(value: Any, step: str) -> Any:
    """What a later run gets, so that this one gets the same: a tuple becomes a list."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise CallFailed("The result of step %s is not JSON: %s" % (step, error), "RESULT_NOT_JSON")


def question_state(stored: Optional[Stored]) -> Optional[Dict[str, Any]]:
    """What /ask would answer, for a question that has ended before this run."""
    if stored is not None and stored["status"] == "completed":
        given = stored["result"]
        return {"status": "answered", "answer": given["answer"], "action": given.get("action")}
    if stored is not None and stored["status"] == "failed" and stored["error"] is not None:
        return {"status": "failed", "error": stored["error"]}
    return None


def child_to_api(job: Mapping[str, Any]) -> Dict[str, Any]:
    """`type` and `queue` have other names in the scheduler API."""
    names = {"type": "job_type", "queue": "addon_id"}
    return {names.get(field, field): value for field, value in job.items() if value is not None}


def fan_out_child(job: Mapping[str, Any]) -> Dict[str, Any]:
    for field in ("unique", "after"):
        if field in job:
            raise ValueError("a child of fan_out cannot have %s" % field)
    return child_to_api(job)


def child_failed(child: Mapping[str, Any]) -> CallFailed:
    how = {"ERROR": "failed", None: "was deleted"}.get(child["status"], "was canceled")
    kind = "" if child["job_type"] is None else " (%s)" % child["job_type"]
    why = "" if child["error"] is None else ": " + str(child["error"]["message"])
    shown = {"id": child["job_id"], "type": child["job_type"], "error": without_trace(child["error"])}
    return CallFailed("Child %s%s %s%s" % (child["job_id"], kind, how, why), "CHILD_FAILED",
                      details={"children": [shown]})


def outcome(child: Mapping[str, Any]) -> Dict[str, Any]:
    """How a child ended, for `all_settled`."""
    if child["status"] in ("SUCCESS", "PARTIAL"):
        return {"id": child["job_id"], "status": "succeeded", "result": child["result"]}
    ended: Dict[str, Any] = {"id": child["job_id"], "status": "failed" if child["status"] == "ERROR" else "canceled"}
    return ended if child["error"] is None else dict(ended, error=without_trace(child["error"]))


def without_trace(error: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    traces = ("stack", "cause", "errors")
    return None if error is None else {field: value for field, value in error.items() if field not in traces}


def without_none(fields: Mapping[str, Any]) -> Dict[str, Any]:
    return {field: value for field, value in fields.items() if value is not None}
