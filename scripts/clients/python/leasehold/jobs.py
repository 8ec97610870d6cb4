"""What can be done with jobs that exist: read, list, wait, act."""
from __future__ import annotations

import time
from typing import Any, Dict, Iterator, Mapping, Optional, Protocol, Sequence, Union, cast

from .errors import JobFailed, LeaseholdError, WaitTimeout
from .stream import EventStream, StreamMessage
from .transport import Transport, backoff, query, quote, without_none
from .types import Event, Job, JobGraph, JobSummary, LogLine, Why


class HasId(Protocol):
    @property
    def id(self) -> str: ...


#: A job's id, or anything that has it: a handle, a job, an entry of a list.
JobId = Union[str, HasId, Mapping[str, Any]]

SUCCEEDED = ("SUCCESS", "PARTIAL")


def id_of(job: JobId) -> str:
    found = job if isinstance(job, str) else job["id"] if isinstance(job, Mapping) else job.id
    if not found:
        raise ValueError("a job is named by its id, or by something that has one")
    return cast(str, found)


class Jobs:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, job: JobId) -> Job:
        return cast(Job, self._transport.request("GET", path_of(job), repeatable=True).body)

    def list(self, *, status: Union[str, Sequence[str], None] = None, held: Optional[bool] = None,
             hold_kind: Optional[str] = None, type: Optional[str] = None, queue: Optional[str] = None,
             target_id: Optional[str] = None, priority: Optional[str] = None, created_after: Any = None,
             created_before: Any = None, parent_id: Optional[str] = None, search: Optional[str] = None,
             payload: Optional[str] = None, include: Optional[str] = None,
             limit: Optional[int] = None) -> Iterator[JobSummary]:
        """Newest first, page after page; `limit` is the size of a page."""
        filters = {name: value for name, value in locals().items() if name != "self"}
        return cast(Iterator[JobSummary], pages(self._transport, "/api/jobs", "jobs", filters))

    def graph(self, job: JobId, limit: int = 200) -> JobGraph:
        """The jobs it waits for, those that wait for it, and what is connected with them."""
        path = "%s/graph?limit=%d" % (path_of(job), limit)
        return cast(JobGraph, self._transport.request("GET", path, repeatable=True).body)

    def why(self, job: JobId) -> Why:
        """Why it is not running, and what would release it."""
        return cast(Why, self._transport.request("GET", path_of(job) + "/why", repeatable=True).body)

    def events(self, job: JobId) -> Iterator[Event]:
        """The history of a job, oldest first."""
        return cast(Iterator[Event], pages(self._transport, path_of(job) + "/events", "events", {}))

    def logs(self, job: JobId) -> Iterator[LogLine]:
        """What its handler has logged so far, oldest first."""
        cursor: Optional[str] = None
        while True:
            path = path_of(job) + "/logs" + query({"cursor": cursor})
            body = self._transport.request("GET", path, repeatable=True).body
            yield from body["lines"]
            cursor = body["next_cursor"]
            if not body["lines"] or cursor is None:
                return

    def cancel(self, job: JobId, *, reason: Optional[str] = None, author: Optional[str] = None) -> Job:
        """Ends a job. If it runs, it is asked to stop: `cancel_requested` is true until it has."""
        return self._act(job, "cancel", {"reason": reason, "author": author})

    def pause(self, job: JobId, *, reason: Optional[str] = None, author: Optional[str] = None) -> Job:
        return self._act(job, "pause", {"reason": reason, "author": author})

    def resume(self, job: JobId, *, reason: Optional[str] = None, author: Optional[str] = None,
               token_limit: Optional[int] = None, budget: Optional[Mapping[str, float]] = None) -> Job:
        """Runs a paused or failed job again, under a new `budget` if one is given (`{"cents": 1000}`). Not repeated after a lost answer: it may have run and failed anew."""
        body = {"reason": reason, "author": author, "token_limit": token_limit, "budget": budget}
        return self._act(job, "resume", body, repeatable=False)

    def retry(self, job: JobId, *, reason: Optional[str] = None, author: Optional[str] = None) -> Job:
        """The same request as `resume`, for a job that failed."""
        return self.resume(job, reason=reason, author=author)

    def resolve(self, job: JobId, result: Any = None, *, reason: Optional[str] = None,
                author: Optional[str] = None) -> Job:
        """Ends a paused or failed job as SUCCESS with this result."""
        return self._act(job, "resolve", {"result": result, "reason": reason, "author": author})

    def skip(self, job: JobId, *, reason: Optional[str] = None, author: Optional[str] = None) -> Job:
        """Cancels the job that holds its lane, so that the lane continues."""
        return self._act(job, "skip", {"reason": reason, "author": author})

    def wait(self, job: JobId, *, timeout: Optional[float] = None, on_error: str = "raise") -> Job:
        """Waits until the job has succeeded. Survives lost connections and restarts of the daemon.

        Raises JobFailed for ERROR and CANCELED, WaitTimeout after `timeout` seconds. A PAUSED job is waited for; with
        `on_error="wait"` so is a failed one, until a person has resumed, resolved or skipped it.
        """
        job_id = id_of(job)
        ends = (*SUCCEEDED, "CANCELED") if on_error == "wait" else (*SUCCEEDED, "CANCELED", "ERROR")
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        failures = 0
        while True:
            found = self.get(job_id)
            if found["status"] in SUCCEEDED:
                return found
            if found["status"] in ends:
                raise JobFailed(found)
            if self._next_change(job_id, ends, deadline):
                failures = 0
            else:
                failures += 1
                time.sleep(max(0.0, min(backoff(failures), deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                raise WaitTimeout("Job %s has not ended within %s seconds." % (job_id, timeout))

    def _next_change(self, job_id: str, ends: Sequence[str], deadline: float) -> bool:
        """True once the job may have ended; false if the stream was lost, refused, or silent until the deadline."""
        idle = max(0.001, min(60.0, deadline - time.monotonic()))
        filters = {"job_id": job_id, "snapshot": True}
        with EventStream(self._transport, filters, idle_timeout=idle, retry_for=0.0) as stream:
            try:
                for message in stream:
                    if may_have_ended(message, ends):
                        return True
                    if time.monotonic() >= deadline:
                        return False
                    stream.set_timeout(min(60.0, deadline - time.monotonic()))
            except LeaseholdError:
                # Reading the job shows what is wrong, if anything is.
                return False
        return False

    def _act(self, job: JobId, verb: str, body: Dict[str, Any], repeatable: bool = True) -> Job:
        answer = self._transport.request("POST", "%s/%s" % (path_of(job), verb), without_none(body),
                                         repeatable=repeatable)
        return cast(Job, answer.body)


def may_have_ended(message: StreamMessage, ends: Sequence[str]) -> bool:
    if message.event is not None:
        return message.event["to"] in ends
    if message.jobs is not None:
        return not message.jobs or any(job["status"] in ends for job in message.jobs)
    return message.kind == "reset"


def path_of(job: JobId) -> str:
    return "/api/jobs/" + quote(id_of(job))


def pages(transport: Transport, path: str, name: str, filters: Mapping[str, Any]) -> Iterator[Any]:
    cursor: Optional[str] = None
    while True:
        body = transport.request("GET", path + query({**filters, "cursor": cursor}), repeatable=True).body
        yield from body[name]
        cursor = body["next_cursor"]
        if cursor is None:
            return
