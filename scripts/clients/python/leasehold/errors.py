"""What the client raises. All of it is a LeaseholdError."""
from __future__ import annotations

from typing import Any, Dict, List, Optional

from .types import Job


class LeaseholdError(Exception):
    pass


class Problem(LeaseholdError):
    """The daemon refused the request (RFC 9457). `code` is for programs, `detail` for people."""

    def __init__(self, status: int, body: Dict[str, Any], attempts: int = 1) -> None:
        self.status = status
        self.code: str = body.get("code") or "HTTP_%d" % status
        self.title: str = body.get("title") or "HTTP %d" % status
        self.detail: str = body.get("detail") or "The server answered %d." % status
        field = body.get("field")
        #: Each field that was refused, and why: `{"field", "message"}`.
        self.errors: List[Dict[str, str]] = body.get("errors") or (
            [{"field": field, "message": self.detail}] if field else [])
        self.request_id: Optional[str] = body.get("request_id")
        #: How often the request was sent.
        self.attempts = attempts
        #: The whole answer.
        self.body = body
        super().__init__("%s: %s" % (self.code, self.detail))


class ConnectionFailed(LeaseholdError):
    """No answer, or only a part of one."""

    def __init__(self, message: str, may_have_happened: bool, attempts: int) -> None:
        #: Whether the request may have taken effect. It was repeated only if repeating it was safe.
        self.may_have_happened = may_have_happened
        self.attempts = attempts
        super().__init__(message)


class JobFailed(LeaseholdError):
    """The job that was waited for is in ERROR or CANCELED."""

    def __init__(self, job: Job) -> None:
        self.job = job
        error = job["error"]
        why = "" if error is None else ": " + str(error["message"])
        super().__init__("Job %s (%s) is %s%s" % (job["id"], job["type"], job["status"], why))


class WaitTimeout(LeaseholdError):
    """The timeout of a wait has passed. The job is not changed."""
