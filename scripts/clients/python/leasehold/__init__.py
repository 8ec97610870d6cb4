"""Client and worker for Leasehold, with the standard library only. Importing opens no connection."""
from .calls import CallFailed, Stopped
from .client import Client, Enqueued, JobRequest
from .durable import Event
from .errors import ConnectionFailed, JobFailed, LeaseholdError, Problem, WaitTimeout
from .stream import EventStream, StreamMessage
from .worker import Work, Worker

__all__ = [
    "CallFailed", "Client", "ConnectionFailed", "Enqueued", "Event", "EventStream", "JobFailed", "JobRequest",
    "LeaseholdError", "Problem", "Stopped", "StreamMessage", "WaitTimeout", "Work", "Worker",
]
