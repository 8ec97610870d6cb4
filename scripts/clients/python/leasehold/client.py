"""The client of the HTTP API. Safe to share between threads."""
from __future__ import annotations

import json
import uuid
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union, cast

from .errors import Problem
from .jobs import Jobs
from .limits import Budgets, Limits
from .resources import Events, Operations, Questions, Schedules, Targets
from .transport import Answer, Transport, without_none
from .types import Attention, Counts, HoldCount, Job, JobSummary, StatsSnapshot, Worker

MAX_JOBS = 1000
# The daemon accepts 8 MB; a part of it is kept for the fields around the jobs.
MAX_BYTES = 7 * 1048576


class Enqueued(NamedTuple):
    id: str
    #: False: an earlier request with the same key made it.
    created: bool
    job: Job


class JobRequest(NamedTuple):
    """One job of `enqueue_many`; `options` are the keyword arguments of `enqueue`."""

    type: str
    payload: Any = None
    options: Mapping[str, Any] = {}


class EnqueueResult(NamedTuple):
    """`job` or `error`."""

    job: Optional[JobSummary]
    created: bool
    error: Optional[Problem]

    @property
    def id(self) -> str:
        if self.job is None:
            raise cast(Problem, self.error)
        return self.job["id"]


class Client:
    """`retry_for` seconds is how long a request is repeated; `timeout` limits one attempt."""

    def __init__(self, url: str, api_key: str, *, timeout: float = 30.0, retry_for: float = 60.0,
                 headers: Optional[Mapping[str, str]] = None) -> None:
        self._transport = Transport(url, api_key, timeout, retry_for, headers or {})
        self.jobs = Jobs(self._transport)
        self.targets = Targets(self._transport)
        self.schedules = Schedules(self._transport)
        self.limits = Limits(self._transport)
        self.budgets = Budgets(self._transport)
        self.operations = Operations(self._transport)
        self.questions = Questions(self._transport)
        self.events = Events(self._transport)

    def enqueue(self, type: str, payload: Any = None, *, target_id: Optional[str] = None,
                priority: Optional[str] = None, queue: Optional[str] = None, run_at: Any = None,
                max_attempts: Optional[int] = None, retry: Optional[Mapping[str, Any]] = None,
                timeout_seconds: Optional[float] = None, expires_in_seconds: Optional[float] = None,
                token_limit: Optional[int] = None, budget: Optional[Mapping[str, float]] = None,
                cost_units: Optional[int] = None,
                constraints: Optional[Mapping[str, Any]] = None, on_error: Optional[str] = None,
                on_drain: Optional[str] = None, webhook_url: Optional[str] = None, author: Optional[str] = None,
                after: Optional[Sequence[Union[str, Mapping[str, str]]]] = None,
                unique: Optional[Mapping[str, Any]] = None, idempotency_key: Optional[str] = None,
                traceparent: Optional[str] = None) -> Enqueued:
        """Enqueues a job, once, whatever happens on the way. `run_at` may be a datetime with a zone. `after` names jobs that
        have to succeed first, by id or idempotency key, or as `{"job": …, "on_failure": "hold" | "cancel" | "continue"}`.
        `unique` is `{"key", "until", "conflict"}`: the job that holds the key is returned instead of a second one."""
        given = {name: value for name, value in locals().items()
                 if name not in ("self", "idempotency_key", "traceparent")}
        status, body = self._transport.request(
            "POST", "/api/jobs", without_none(given), headers_of(idempotency_key or new_key(), traceparent),
            repeatable=True)
        return Enqueued(body["id"], status == 201, cast(Job, body))

    def enqueue_many(self, requests: Sequence[Union[JobRequest, Mapping[str, Any]]], *, atomic: bool = False,
                     idempotency_key: Optional[str] = None, traceparent: Optional[str] = None) -> List[EnqueueResult]:
        """A result for each request, in their order. Sent in batches of up to 1,000 jobs; `atomic` allows one batch."""
        batches = batches_of([to_fields(request) for request in requests])
        if atomic and len(batches) > 1:
            raise ValueError("an atomic batch has at most %d jobs and 8 MB" % MAX_JOBS)
        key = idempotency_key or new_key()
        results: List[EnqueueResult] = []
        for number, batch in enumerate(batches):
            body = b'{"atomic":%s,"jobs":[%s]}' % (b"true" if atomic else b"false", b",".join(batch))
            headers = headers_of(key if number == 0 else "%s/%d" % (key, number), traceparent)
            answer = self._transport.request("POST", "/api/jobs/batch", body, headers, repeatable=True).body
            results.extend(to_result(result) for result in answer["results"])
        return results

    def attention(self) -> Attention:
        """What needs a person now."""
        return cast(Attention, self._get("/api/attention"))

    def hold_count(self) -> HoldCount:
        return cast(HoldCount, self._get("/api/attention/count"))

    def counts(self) -> Counts:
        """Jobs by status."""
        return cast(Counts, self._get("/api/stats/jobs"))

    def stats(self) -> StatsSnapshot:
        return cast(StatsSnapshot, self._get("/api/stats/snapshot"))

    def workers(self) -> List[Worker]:
        """The daemons; needs an operator's key."""
        return cast(List[Worker], self._get("/api/admin/workers")["workers"])

    def request(self, method: str, path: str, body: Any = None, *, repeatable: Optional[bool] = None) -> Answer:
        """Any other route. GET is repeated; anything else only with `repeatable=True`."""
        safe = method == "GET" if repeatable is None else repeatable
        return self._transport.request(method, path, body, repeatable=safe)

    def _get(self, path: str) -> Any:
        return self._transport.request("GET", path, repeatable=True).body


def to_fields(request: Union[JobRequest, Mapping[str, Any]]) -> Dict[str, Any]:
    if isinstance(request, JobRequest):
        fields = {"type": request.type, "payload": request.payload, **request.options}
    else:
        fields = dict(request)
    if "idempotency_key" in fields:
        fields["client_request_id"] = fields.pop("idempotency_key")
    return without_none(fields)


def batches_of(jobs: Sequence[Dict[str, Any]]) -> List[List[bytes]]:
    batches: List[List[bytes]] = []
    size = 0
    for job in jobs:
        text = json.dumps(job).encode()
        if not batches or len(batches[-1]) == MAX_JOBS or size + len(text) > MAX_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(text)
        size += len(text) + 1
    return batches


def to_result(result: Dict[str, Any]) -> EnqueueResult:
    if "job" in result:
        return EnqueueResult(result["job"], result["status"] == 201, None)
    return EnqueueResult(None, False, Problem(result["status"], result.get("error") or {}))


def headers_of(idempotency_key: str, traceparent: Optional[str]) -> Dict[str, str]:
    headers = {"Idempotency-Key": idempotency_key}
    return headers if traceparent is None else {**headers, "traceparent": traceparent}


def new_key() -> str:
    return uuid.uuid4().hex
