"""Targets, schedules, bulk operations and the event log."""
from __future__ import annotations

import time
import uuid
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Union, cast

from .errors import Problem
from .jobs import JobId, id_of, pages
from .stream import EventStream
from .transport import Transport, quote, without_none
from .types import (Event, EventReceipt, Job, Lane, NewQuestionLink, Operation, OperationPreview, Question, Schedule,
                    Target, TargetLane)


class Targets:
    """These requests set a state, so sending one twice has no further effect."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, target_id: str) -> TargetLane:
        return self._send("GET", target_id)

    def list(self, *, paused: Optional[bool] = None, limit: Optional[int] = None) -> Iterator[Target]:
        found = pages(self._transport, "/api/targets", "targets", {"paused": paused, "limit": limit})
        return cast(Iterator[Target], found)

    def lanes(self, *, show: Optional[str] = None, search: Optional[str] = None,
              limit: Optional[int] = None) -> Iterator[Lane]:
        filters = {"show": show, "search": search, "limit": limit}
        return cast(Iterator[Lane], pages(self._transport, "/api/lanes", "lanes", filters))

    def pause(self, target_id: str, *, reason: Optional[str] = None, author: Optional[str] = None,
              until: Any = None) -> TargetLane:
        """What runs continues, nothing starts."""
        return self._send("POST", target_id, "/pause", {"reason": reason, "author": author, "until": until})

    def resume(self, target_id: str, *, reason: Optional[str] = None, author: Optional[str] = None) -> TargetLane:
        return self._send("POST", target_id, "/resume", {"reason": reason, "author": author})

    def set_labels(self, target_id: str, labels: Mapping[str, str]) -> TargetLane:
        """Replaces all labels; creates the target if it does not exist."""
        return self._send("PUT", target_id, "", {"labels": labels})

    def change_labels(self, target_id: str, labels: Mapping[str, Optional[str]]) -> TargetLane:
        """Changes the labels that are named; None removes one."""
        return self._send("PATCH", target_id, "", {"labels": labels})

    def _send(self, method: str, target_id: str, verb: str = "", body: Optional[Dict[str, Any]] = None) -> TargetLane:
        path = "/api/targets/%s%s" % (quote(target_id), verb)
        sent = None if body is None else without_none(body)
        return cast(TargetLane, self._transport.request(method, path, sent, repeatable=True).body)


class Schedules:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, schedule_id: str) -> Schedule:
        return self._send("GET", schedule_id)

    def list(self, *, limit: Optional[int] = None) -> Iterator[Schedule]:
        return cast(Iterator[Schedule], pages(self._transport, "/api/schedules", "schedules", {"limit": limit}))

    def create(self, name: str, cron: str, job: Mapping[str, Any], *, timezone: Optional[str] = None,
               missed: Optional[str] = None, author: Optional[str] = None) -> Schedule:
        """`job` has the fields of an enqueue: `{"type": …, "payload": …}`. Not repeated after a lost answer."""
        body = {"name": name, "cron": cron, "job": job, "timezone": timezone, "missed": missed, "author": author}
        return cast(Schedule, self._transport.request("POST", "/api/schedules", without_none(body)).body)

    def update(self, schedule_id: str, *, name: Optional[str] = None, cron: Optional[str] = None,
               job: Optional[Mapping[str, Any]] = None, timezone: Optional[str] = None,
               missed: Optional[str] = None) -> Schedule:
        body = {"name": name, "cron": cron, "job": job, "timezone": timezone, "missed": missed}
        return self._send("PATCH", schedule_id, "", without_none(body))

    def delete(self, schedule_id: str) -> None:
        try:
            self._transport.request("DELETE", "/api/schedules/" + quote(schedule_id), repeatable=True)
        except Problem as problem:
            # An earlier attempt, whose answer was lost, has deleted it.
            if problem.status != 404 or problem.attempts == 1:
                raise

    def pause(self, schedule_id: str) -> Schedule:
        return self._send("POST", schedule_id, "/pause")

    def resume(self, schedule_id: str) -> Schedule:
        return self._send("POST", schedule_id, "/resume")

    def run(self, schedule_id: str) -> Job:
        """Enqueues its job now, beside its times. Not repeated after a lost answer."""
        path = "/api/schedules/%s/run" % quote(schedule_id)
        return cast(Job, self._transport.request("POST", path).body["job"])

    def _send(self, method: str, schedule_id: str, verb: str = "", body: Optional[Dict[str, Any]] = None) -> Schedule:
        path = "/api/schedules/%s%s" % (quote(schedule_id), verb)
        return cast(Schedule, self._transport.request(method, path, body, repeatable=True).body)


class Questions:
    """What jobs ask people."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, status: Optional[str] = None, assignee: Optional[str] = None, job: Optional[JobId] = None,
             target_id: Optional[str] = None, limit: Optional[int] = None) -> Iterator[Question]:
        """Newest first."""
        filters = {"status": status, "assignee": assignee, "job_id": None if job is None else id_of(job),
                   "target_id": target_id, "limit": limit}
        return cast(Iterator[Question], pages(self._transport, "/api/questions", "questions", filters))

    def get(self, question_id: str) -> Question:
        path = "/api/questions/" + quote(question_id)
        return cast(Question, self._transport.request("GET", path, repeatable=True).body)

    def answer(self, question_id: str, answer: Optional[Mapping[str, Any]] = None, *, action: Optional[str] = None,
               author: Optional[str] = None) -> Question:
        """Exactly one answer counts; a later one raises QUESTION_CLOSED. Not repeated after a lost answer."""
        body = without_none({"answer": answer or {}, "action": action, "author": author})
        path = "/api/questions/%s/answer" % quote(question_id)
        return cast(Question, self._transport.request("POST", path, body).body)

    def create_link(self, question_id: str, *, recipient: Optional[str] = None,
                    expires_in_seconds: Optional[float] = None) -> NewQuestionLink:
        """A link that opens the form of the question without sign-in. Its `url` is shown only here."""
        body = without_none({"recipient": recipient, "expires_in_seconds": expires_in_seconds})
        path = "/api/questions/%s/links" % quote(question_id)
        return cast(NewQuestionLink, self._transport.request("POST", path, body).body)


class Operations:
    """One action (`cancel`, `resume` or `retry`) on all jobs that match a filter."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def preview(self, action: str, filter: Mapping[str, Any]) -> OperationPreview:
        """How many jobs it would change; changes nothing."""
        body = {"action": action, "filter": filter, "dry_run": True}
        return cast(OperationPreview, self._transport.request("POST", "/api/operations", body, repeatable=True).body)

    def start(self, action: str, filter: Mapping[str, Any], *, reason: Optional[str] = None,
              author: Optional[str] = None) -> Operation:
        """Not repeated after a lost answer: `list` shows whether it began."""
        body = without_none({"action": action, "filter": filter, "reason": reason, "author": author})
        return cast(Operation, self._transport.request("POST", "/api/operations", body).body)

    def get(self, operation_id: str) -> Operation:
        path = "/api/operations/" + quote(operation_id)
        return cast(Operation, self._transport.request("GET", path, repeatable=True).body)

    def list(self, *, limit: Optional[int] = None) -> Iterator[Operation]:
        return cast(Iterator[Operation], pages(self._transport, "/api/operations", "operations", {"limit": limit}))

    def wait(self, operation_id: str) -> Operation:
        delay = 0.1
        while True:
            operation = self.get(operation_id)
            if operation["status"] != "running":
                return operation
            time.sleep(delay)
            delay = min(2.0, delay * 1.5)


class Events:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, type: Union[str, Sequence[str], None] = None, job: Optional[JobId] = None,
             target_id: Optional[str] = None, actor: Optional[str] = None, since: Any = None, until: Any = None,
             limit: Optional[int] = None) -> Iterator[Event]:
        """The log, newest first."""
        filters = {"type": type, "job_id": None if job is None else id_of(job), "target_id": target_id,
                   "actor": actor, "since": since, "until": until, "limit": limit}
        return cast(Iterator[Event], pages(self._transport, "/api/events", "events", filters))

    def send(self, name: str, data: Any = None, *, id: Optional[str] = None) -> EventReceipt:
        """Sends an event to the jobs that wait for it. With the same `id` it is received once."""
        body = {"id": id or str(uuid.uuid4()), "data": {} if data is None else data}
        answer = self._transport.request("POST", "/api/events/" + quote(name), body, repeatable=True)
        return cast(EventReceipt, answer.body)

    def stream(self, *, job: Optional[JobId] = None, target_id: Optional[str] = None, snapshot: Optional[bool] = None,
               after: Optional[str] = None, idle_timeout: float = 60.0,
               retry_for: float = float("inf")) -> EventStream:
        """The live stream; `close()` it, or leave its `with` block, to end it."""
        filters = {"job_id": None if job is None else id_of(job), "target_id": target_id, "snapshot": snapshot}
        return EventStream(self._transport, filters, after, idle_timeout, retry_for)
