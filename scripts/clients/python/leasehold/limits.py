"""Rate and concurrency limits, and budgets. All of it sets a state: sent twice, it is set once."""
from __future__ import annotations

from typing import Any, List, Mapping, Optional, cast

from .errors import Problem
from .transport import Transport, query, quote, without_none
from .types import Budget, Limit, UsageDay


class Limits:
    """How many jobs may start in a time, or run at once."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> List[Limit]:
        """All of them, by name, with what they count now."""
        return cast("List[Limit]", self._transport.request("GET", "/api/limits", repeatable=True).body["limits"])

    def get(self, name: str) -> Limit:
        return cast(Limit, self._transport.request("GET", "/api/limits/" + quote(name), repeatable=True).body)

    def set(self, name: str, *, rate: Optional[float] = None, per: Optional[str] = None, burst: Optional[int] = None,
            concurrency: Optional[int] = None, type: Optional[str] = None, queue: Optional[str] = None,
            key: Optional[str] = None) -> Limit:
        """Adds the limit, or replaces the one of this name. `key` counts each value separately: `payload.account`."""
        body = {"rate": rate, "per": per, "burst": burst, "concurrency": concurrency, "type": type, "queue": queue,
                "key": key}
        return cast(Limit, put(self._transport, "/api/limits/" + quote(name), body))

    def delete(self, name: str) -> None:
        delete_once(self._transport, "/api/limits/" + quote(name))


class Budgets:
    """How much of a unit jobs may use."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> List[Budget]:
        """All of them, by name, with what was used today."""
        return cast("List[Budget]", self._transport.request("GET", "/api/budgets", repeatable=True).body["budgets"])

    def set(self, name: str, *, unit: str, limit: float, per: str = "job", type: Optional[str] = None) -> Budget:
        """Adds the budget, or replaces the one of this name: a higher limit raises it."""
        body = {"unit": unit, "limit": limit, "per": per, "type": type}
        return cast(Budget, put(self._transport, "/api/budgets/" + quote(name), body))

    def delete(self, name: str) -> None:
        """Jobs that it holds stay held."""
        delete_once(self._transport, "/api/budgets/" + quote(name))

    def usage(self, *, days: Optional[int] = None) -> List[UsageDay]:
        """What jobs used of each unit, by day and type."""
        path = "/api/stats/usage" + query({"days": days})
        return cast("List[UsageDay]", self._transport.request("GET", path, repeatable=True).body["usage"])


def put(transport: Transport, path: str, body: Mapping[str, Any]) -> Any:
    return transport.request("PUT", path, without_none(dict(body)), repeatable=True).body


def delete_once(transport: Transport, path: str) -> None:
    try:
        transport.request("DELETE", path, repeatable=True)
    except Problem as problem:
        # An earlier attempt, whose answer was lost, has deleted it.
        if problem.status != 404 or problem.attempts == 1:
            raise
