"""Client and worker for Leasehold, with the standard library only. Importing opens no connection."""
from .client import Client, Enqueued, JobRequest
from .errors import ConnectionFailed, JobFailed, LeaseholdError, Problem, WaitTimeout
from .stream import EventStream, StreamMessage
from .worker import Stopped, Work, Worker

__all__ = [
    "Client", "ConnectionFailed", "Enqueued", "EventStream", "JobFailed", "JobRequest", "LeaseholdError", "Problem",
    "Stopped", "StreamMessage", "WaitTimeout", "Work", "Worker",
]
