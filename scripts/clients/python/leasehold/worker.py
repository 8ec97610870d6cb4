#!/usr/bin/env python3
"""A worker for Leasehold, with the standard library only. With calls.py and durable.py it also works alone: copy the three.

Claims a job, prepares, asks for a lease, runs your handler under heartbeats and releases. It stops
the handler when somebody cancels or pauses the job, and before its lease runs out: the time of the
last heartbeat that was answered, taken when it was sent, plus the lease's ttl.

    from leasehold import Worker

    def render(work):
        for step in range(35):
            work.check()                      # raises Stopped when the work must end
            work.report(step / 35, f"rendering step {step}/35")
        return {"path": "/runtime/out.jpg"}

    Worker(url, key, queue="visuals", handler=render).run()

Work that has steps or has to wait makes durable calls: work.step, sleep_for, wait_for_event, ask, fan_out …

Run as a program it is an example that counts for payload["seconds"], configured by LEASEHOLD_URL,
LEASEHOLD_KEY and LEASEHOLD_QUEUE.
"""
from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import urllib.parse
import uuid
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Sequence, Set, Tuple

if TYPE_CHECKING or __package__:
    from .calls import CallFailed, Stopped, to_error
    from .durable import Durable
else:  # run as a file
    from calls import CallFailed, Stopped, to_error
    from durable import Durable

REQUEST_TIMEOUT = 10.0
MAX_LEASES_KNOWN = 10000  # more than can be granted while an answer is under way
WAIT_SECONDS = 20
START_WITHIN = 0.5  # a handler that begins later than this after its stop requests were read reads them again
MAX_BEATS = 3  # after that many late answers the handler begins: the server is slow
RETRY_SECONDS = 0.5
MAX_SERVER_ERRORS = 20  # a server that fails to answer this very request will not succeed with it later


class Unreachable(Exception):
    """No usable answer: the request may or may not have taken effect."""

    def __init__(self, message: str, status: Optional[int] = None) -> None:
        super().__init__(message)
        self.status = status


Post = Callable[["Work", str, Mapping[str, Any]], Tuple[int, Any]]


class Work(Durable):
    """One attempt, as the handler sees it."""

    def __init__(self, job: Dict[str, Any], lease_id: str, ttl: float, sent_at: float,
                 post: Optional[Post] = None, release_lane: bool = False) -> None:
        super().__init__(job, release_lane)
        self.job = job
        self.payload: Any = job["payload"]
        self.lease_id = lease_id  # the fence: for whoever must refuse writes of a lost lease
        self.ttl = ttl
        self.deadline = sent_at + ttl - margin(ttl)
        self.reason: Optional[str] = None
        self.stopping = threading.Event()
        self.ended = threading.Event()
        self.progress: Optional[float] = None
        self.message: Optional[str] = None
        self._post = post
        self._suspending = False  # a refused heartbeat says nothing then
        self._waits = False  # the lease has ended: the job waits, or was stopped instead

    def check(self) -> None:
        """Call it often, and before everything that leaves a trace outside."""
        if time.monotonic() >= self.deadline:
            self.stop("lease lost")
        if self.stopping.is_set():
            raise Stopped(self.reason or "cancel")

    def sleep(self, seconds: float) -> None:
        """Sleeps, but not past a wish to stop."""
        self.stopping.wait(max(0, min(seconds, self.deadline - time.monotonic())))
        self.check()

    def report(self, progress: float, message: Optional[str] = None) -> None:
        self.progress = min(1.0, max(0.0, progress))
        self.message = message

    def stop(self, reason: str) -> None:
        # Nothing may be written any more once the lease is lost, whatever was asked before.
        if self.reason is None or reason == "lease lost":
            self.reason = reason
        self.stopping.set()

    def _heard(self, beat: Mapping[str, Any]) -> None:
        if beat.get("budget_spent") is not None:
            self.stop("budget")
        elif beat["job"]["cancel_requested"]:
            self.stop(beat["job"]["cancel_intent"])

    def _send(self, call: str, body: Mapping[str, Any]) -> Any:
        """May be repeated: the server stores each call once."""
        if self._post is None:
            raise CallFailed("durable calls need a worker", "NO_WORKER")
        server_errors = 0
        if call == "suspend":
            self._suspending = True
        while True:
            # A step that has ended is stored, also when the run has to stop: it is not made again.
            if call != "steps" or self.reason == "lease lost" or time.monotonic() >= self.deadline:
                self.check()
            try:
                status, answer = self._post(self, call, body)
            except Unreachable as error:
                server_errors += 1 if error.status == 500 else 0
                if server_errors >= MAX_SERVER_ERRORS:
                    raise CallFailed("The server cannot answer the call.", "SERVER_ERROR", recoverable=True)
                self.sleep(RETRY_SECONDS)
                continue
            if status == 200:
                break
            problem = answer if isinstance(answer, dict) else {}
            code = problem.get("code_of_job") or problem.get("code") or "REFUSED"
            if status != 404 and problem.get("code") != "LEASE_LOST":
                detail = problem.get("detail") or "The server refused the call."
                raise CallFailed(detail, code, recoverable=code == "QUEUE_FULL")
            self.stop("lease lost")
        if call == "suspend":
            self._waits = True
            self.ended.set()
            self.stop("waiting")
        elif time.monotonic() >= self.deadline:
            # The process may have been suspended since the server answered.
            self.stop("lease lost")
            self.check()
        return answer


class Worker:
    def __init__(self, url: str, key: str, queue: str, handler: Callable[[Work], Any],
                 worker_id: Optional[str] = None, job_types: Optional[Sequence[str]] = None,
                 max_cost_units: Optional[int] = None, capabilities: Optional[Mapping[str, bool]] = None,
                 concurrency: int = 1, ttl: float = 30.0, drain_seconds: float = 60.0, release_lane: bool = False,
                 log: Optional[Callable[[str], None]] = None) -> None:
        self.url = urllib.parse.urlsplit(url)
        self.key = key
        self.queue = queue
        self.handler = handler
        self.worker_id = worker_id or "worker-%d-%s" % (os.getpid(), uuid.uuid4().hex[:6])
        self.job_types = job_types
        self.max_cost_units = max_cost_units
        self.capabilities = capabilities
        self.concurrency = concurrency
        self.ttl = ttl
        self.drain_seconds = drain_seconds
        self.release_lane = release_lane  # a job that waits leaves its lane meanwhile
        self.log: Callable[[str], None] = log or (lambda message: None)
        self.draining = threading.Event()
        self.running: Set[Work] = set()
        self.polling: Set[http.client.HTTPConnection] = set()
        self.lock = threading.Lock()
        self.leases: Dict[str, None] = {}

    def run(self) -> None:
        """Works until SIGTERM or SIGINT, then drains."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: self.draining.set())
        slots = [threading.Thread(target=self._slot, daemon=True) for _ in range(self.concurrency)]
        for slot in slots:
            slot.start()
        # A signal is handled between two statements of the main thread: it must not wait for ever.
        while not self.draining.wait(0.1):
            pass
        self._hang_up()
        give_up_at = time.monotonic() + self.drain_seconds
        for slot in slots:
            slot.join(max(0, give_up_at - time.monotonic()))
        with self.lock:
            late = list(self.running)
        for work in late:
            work.stop("drain")
        for slot in slots:
            slot.join()

    def _slot(self) -> None:
        failures = 0
        while not self.draining.is_set():
            try:
                job = self._claim()
                failures = 0
                if job is not None:
                    self._work(job)
            except Exception as error:  # a worker outlives whatever happens to one job or one request
                if self.draining.is_set():
                    return
                failures += 1
                self.log("cannot work for now: %s" % error)
                self.draining.wait(min(0.25 * 2 ** failures, 5.0) * random.uniform(0.5, 1.0))

    def _claim(self) -> Optional[Dict[str, Any]]:
        status, body = self._post("/jobs/claim", {
            "addon_id": self.queue, "worker_id": self.worker_id, "accept_job_types": self.job_types,
            "max_cost_units": self.max_cost_units, "constraints_capabilities": self.capabilities,
            "wait_sec": WAIT_SECONDS}, WAIT_SECONDS + REQUEST_TIMEOUT, polling=True)
        if status == 204:
            return None
        if status != 200:
            raise RuntimeError("claim refused: %s %s" % (status, body))
        job: Dict[str, Any] = body["job"]
        return job

    def _work(self, job: Dict[str, Any]) -> None:
        try:  # a courtesy: whether the job is still ours shows when we ask for its lease
            self._post("/jobs/%s/status" % job["job_id"], {"state": "PREPARING", "worker_id": self.worker_id})
        except Unreachable:
            pass
        work = self._lease(job)
        if work is None:
            return
        with self.lock:
            self.running.add(work)
        beating = threading.Thread(target=self._beat, args=(work,), daemon=True)
        beating.start()
        try:
            outcome = self._attempt(work)
            if outcome is not None:
                self._release(work, outcome)
        finally:
            work.ended.set()
            with self.lock:
                self.running.discard(work)
            beating.join()

    def _take(self, lease_id: str) -> bool:
        """One slot per lease: if the claim of a slot expires while its request is repeated, and another slot claims the
        job, both are answered with the same lease."""
        with self.lock:
            if lease_id in self.leases:
                return False
            while len(self.leases) >= MAX_LEASES_KNOWN:
                del self.leases[next(iter(self.leases))]
            self.leases[lease_id] = None
            return True

    def _lease(self, job: Dict[str, Any]) -> Optional[Work]:
        request_id = str(uuid.uuid4())
        answer_lost = False
        while not self.draining.is_set():
            sent_at = time.monotonic()
            try:
                status, body = self._post("/lease/request", {
                    "job_id": job["job_id"], "worker_id": self.worker_id, "request_id": request_id,
                    "ttl_sec": self.ttl})
            except Unreachable:
                answer_lost = True
                self.draining.wait(0.5)
                continue
            if status != 200:
                self.log("claim lost: %s" % body)
                return None
            if body["approved"]:
                lease = body["lease"]
                if not self._take(lease["lease_id"]):
                    self.log("another slot has the lease of %s" % job["job_id"])
                    return None
                work = Work(job, lease["lease_id"], lease["ttl_sec"], sent_at, self._call, self.release_lane)
                self._confirm(work, float("-inf") if answer_lost else sent_at)
                if time.monotonic() < work.deadline:
                    return work
                try:  # the answer came too late to begin: the job goes back, if the lease is still ours to give
                    self._post("/lease/%s/release" % work.lease_id, {
                        "job_id": job["job_id"], "worker_id": self.worker_id, "status": "CANCELED",
                        "error": "the lease ran out before the start", "requeue": True})
                except Unreachable:
                    pass
                return None
            self.draining.wait(body["retry_after_sec"])
        self._post("/jobs/%s/status" % job["job_id"], {"state": "QUEUED", "worker_id": self.worker_id})
        return None

    def _confirm(self, work: Work, sent_at: float) -> None:
        """Sends a heartbeat before the handler begins, if the request for the lease was sent too long ago: a stop may have
        been requested since then. `sent_at` is -inf if the lease may be that of an earlier request whose answer was lost."""
        beats = 0
        while beats < MAX_BEATS and time.monotonic() - sent_at > START_WITHIN and time.monotonic() < work.deadline:
            beat_at = time.monotonic()
            renewed = self._send_beat(work)
            if renewed is False:
                return
            if renewed is None:
                time.sleep(0.25)
            else:
                sent_at = beat_at
                beats += 1

    def _beat(self, work: Work) -> None:
        wait = work.ttl / 3
        while not work.ended.wait(max(0, min(wait, work.deadline - time.monotonic()))):
            if time.monotonic() >= work.deadline:
                return work.stop("lease lost")
            renewed = self._send_beat(work)
            if renewed is False:
                return None
            # Without an answer the state is unknown, not lost: try again soon, until the time is over.
            wait = min(work.ttl / 12, 1.0) if renewed is None else work.ttl / 3

    def _send_beat(self, work: Work) -> Optional[bool]:
        """True if the lease was renewed, False if it is refused, None without an answer."""
        sent_at = time.monotonic()
        try:
            status, body = self._post("/lease/%s/heartbeat" % work.lease_id, {
                "job_id": work.job["job_id"], "worker_id": self.worker_id,
                "progress": work.progress, "message": work.message, **work._used()},
                min(work.ttl / 3, work.deadline - sent_at))
        except Unreachable:
            return None
        if status != 200:
            if not work._suspending:  # the attempt may have ended as waiting: the answer to that request decides
                work.stop("lease lost")
            return False
        work.deadline = sent_at + work.ttl - margin(work.ttl)
        work._heard(body)
        return True

    def _attempt(self, work: Work) -> Optional[Dict[str, Any]]:
        started = time.monotonic()
        try:
            if work.stopping.is_set():
                raise Stopped(work.reason or "cancel")
            result = self.handler(work)
            # At the claim: how many attempts were made before. A run that must stop is not compared.
            work._calls.check_complete(first_run=work.job["attempts"] == 0 or work.stopping.is_set())
            outcome: Dict[str, Any] = {"status": "SUCCEEDED", "result_data": result,
                                       "close_questions": len(work._calls.unanswered) > 0}
        except Exception as error:  # of a run that must stop any error means that it did
            reason = error.reason if isinstance(error, Stopped) else work.reason
            if reason is not None:
                outcome = {"status": "CANCELED", "error": "stopped: " + reason, "requeue": reason == "drain"}
            else:
                self._reopen(work, error)
                outcome = {"status": "FAILED", "error": to_error(error),
                           "recoverable": getattr(error, "recoverable", None) is not False}
        if work._waits:
            return None  # the lease has ended
        if work.reason == "lease lost":
            self.log("lease lost: %s" % work.lease_id)
            return None  # nothing may be written any more
        outcome["metrics"] = {"runtime_ms": round((time.monotonic() - started) * 1000)}
        return outcome

    def _reopen(self, work: Work, error: Exception) -> None:
        try:
            work._calls.reopen(error)
        except (CallFailed, Stopped) as refused:
            self.log("the failed call stays as it is: %s" % refused)

    def _call(self, work: Work, call: str, body: Mapping[str, Any]) -> Tuple[int, Any]:
        return self._post("/lease/%s/%s" % (work.lease_id, call),
                          dict(body, job_id=work.job["job_id"], worker_id=self.worker_id))

    def _release(self, work: Work, outcome: Dict[str, Any]) -> None:
        body = dict(outcome, job_id=work.job["job_id"], worker_id=self.worker_id)
        while time.monotonic() < work.deadline:  # can be repeated: its first effect is its only one
            try:
                status, answer = self._post("/lease/%s/release" % work.lease_id, body)
                if status != 200:
                    self.log("release refused: %s" % answer)
                return
            except Unreachable:
                time.sleep(0.25)
        self.log("the lease ran out before its release was answered")

    def _post(self, path: str, body: Mapping[str, Any], timeout: float = REQUEST_TIMEOUT,
              polling: bool = False) -> Tuple[int, Any]:
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        connection = kind(str(self.url.hostname), self.url.port, timeout=max(0.001, timeout))
        if polling:
            with self.lock:
                self.polling.add(connection)
        try:
            connection.request("POST", self.url.path.rstrip("/") + "/api/scheduler" + path, json.dumps(body), {
                "Authorization": "Bearer " + self.key, "Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            if response.status >= 500 or (response.status == 429 and b'"QUEUE_FULL"' not in text):
                raise Unreachable("answered %d" % response.status, response.status)
            return response.status, json.loads(text) if text else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(str(error) or type(error).__name__)
        finally:
            with self.lock:
                self.polling.discard(connection)
            connection.close()

    def _hang_up(self) -> None:
        """Ends claims that wait for work: the server sees it and gives them nothing."""
        with self.lock:
            for connection in self.polling:
                if connection.sock is not None:
                    try:
                        connection.sock.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass


def margin(ttl: float) -> float:
    """Time to notice and to stop before another worker may have the job."""
    return min(2.0, ttl / 5)


def leave_trace(work: Work, **more: Any) -> bytes:
    url = urllib.parse.urlsplit(work.payload["effects_url"])
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=5)
    trace = json.dumps(dict(more, job_id=work.job["job_id"], lease_id=work.lease_id))
    connection.request("POST", url.path, trace, {"Content-Type": "application/json"})
    answer = connection.getresponse().read()
    connection.close()
    return answer


def make_steps(work: Work) -> Dict[str, Any]:
    """The example with durable calls: payload["steps"] steps, then a sleep of payload["sleep_seconds"]."""
    receipts = []
    for n in range(1, work.payload["steps"] + 1):
        name = "step-%d" % n
        receipts.append(work.step(name, lambda: json.loads(leave_trace(work, step=name))["receipt"]))
    work.sleep_for(work.payload["sleep_seconds"])
    return {"receipts": receipts}


def count_seconds(work: Work) -> Dict[str, Any]:
    """The example: counts, and posts a sign of life to payload["effects_url"] if there is one."""
    payload = work.payload or {}
    if "steps" in payload:
        return make_steps(work)
    seconds = payload.get("seconds", 1)
    started = time.monotonic()
    while True:
        work.check()
        if payload.get("effects_url"):
            leave_trace(work)
        elapsed = time.monotonic() - started
        work.report(elapsed / seconds, "%.1f of %s s" % (elapsed, seconds))
        if elapsed >= seconds:
            return {"counted": seconds}
        work.sleep(0.1)


if __name__ == "__main__":
    Worker(
        os.environ.get("LEASEHOLD_URL", "http://127.0.0.1:8080"), os.environ.get("LEASEHOLD_KEY", ""),
        os.environ.get("LEASEHOLD_QUEUE", "default"), count_seconds,
        concurrency=int(os.environ.get("LEASEHOLD_CONCURRENCY", "1")),
        ttl=float(os.environ.get("LEASEHOLD_TTL_SEC", "30")),
        drain_seconds=float(os.environ.get("LEASEHOLD_DRAIN_SEC", "60")),
        log=lambda message: print(message, file=sys.stderr, flush=True)).run()
