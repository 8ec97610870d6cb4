# A worker for tests of durable calls. Each run of a handler, and each effect, is a line on standard output.
import os
import sys
import threading
import time
from datetime import datetime, timedelta, timezone

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "..", "scripts", "clients", "python"))
from leasehold import CallFailed, Worker  # noqa: E402

ran = {}


def effect(name):
    print(name, flush=True)
    ran[name] = ran.get(name, 0) + 1
    return ran[name]


def flow(work):
    effect("flow")
    receipt = work.step("charge", lambda: {"receipt": effect("charge"), "pair": (1, 2)})
    try:
        work.step("refused", lambda: int("x" * effect("refused")))
    except CallFailed as error:
        refused = error.code
    work.sleep_for(3600)
    event = work.wait_for_event("paid.python", match={"invoice": 7})
    doubled = work.fan_out("double", [1, 2, 3], lambda n: {"type": "times2", "queue": "python", "payload": n}, concurrency=2)
    work.enqueue("echo", {"from": "python"})
    local = work.wait_for_children()
    work.step("bill", lambda: work.add_usage(cents=3))
    asked = work.ask("Sure?", actions=["Yes", "No"], schema={
        "type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]})
    return {"receipt": receipt, "refused": refused, "amount": event.data["amount"], "doubled": doubled, "local": local,
            "asked": asked}


def failures(work):
    tried = work.step("tried", lambda: 1 // (effect("tried") - 1), attempts=3, delay=0.01)
    work.sleep_until(datetime.now(timezone.utc) + timedelta(milliseconds=5))
    child = {"type": "divides", "queue": "python"}
    settled = work.fan_out("settled", [1, 0], lambda n: dict(child, payload=n), all_settled=True)
    try:
        work.fan_out("first", [0], lambda n: dict(child, payload=n))
    except CallFailed as error:
        failed = error.code
    unlucky = None
    try:
        work.step("unlucky", lambda: 1 // (effect("unlucky") - 1))
    except CallFailed as error:
        unlucky = error
    work.step("after", lambda: effect("after"))
    if unlucky is not None:
        raise unlucky  # the next run makes the call again
    event = work.wait_for_event("nobody.sends", timeout=0)
    return {"tried": tried, "settled": [child["status"] for child in settled], "failed": failed, "event": event}


def changed(work):
    work.step("before" if effect("changed") == 1 else "after", lambda: 1)
    work.sleep_for(3600)


def missing(work):
    if effect("missing") == 1:
        work.step("first", lambda: 1)
        work.sleep_for(3600)


def twice(work):
    for n in range(2):
        work.step("same", lambda: n)


def together(work):
    # The wait does not end the attempt before the step of the other thread is stored.
    thread = threading.Thread(target=lambda: work.step("beside", lambda: work.sleep(0.2) or effect("beside")))
    thread.start()
    try:
        return work.wait_for_event("never.comes", timeout=3600, name="wait") or "none"
    finally:
        thread.join()


def suspended(work):
    post = work._post

    def post_past_lease(*given):
        answer = post(*given)
        work.deadline = time.monotonic()  # as after a suspension of the process that outlived the lease
        return answer

    work._post = post_past_lease
    try:
        work.step("late", lambda: effect("began too late"))
    finally:
        effect("suspended")


def spends(work):
    work.step("paid", lambda: work.add_usage(cents=9))
    work.step("next", lambda: effect("after the budget"))


def large(work):
    parts = []
    send = work._calls._send
    work._calls._send = lambda call, body: (call == "calls" and parts.append(body["after"])) or send(call, body)
    kept = [work.step("page", lambda: effect("page") and str(n) * 200_000, key=n) for n in range(9)]
    work.sleep_for(3600)
    return {"pages": [[page[0], len(page)] for page in kept], "parts": len(parts)}


def durations(work):
    for wrong in ["3 fortnights", "d", "", -1]:
        try:
            work.sleep_for(wrong)
            raise AssertionError(wrong)
        except ValueError:
            pass
    try:
        work.ask("Refused?", actions=["Yes"], timout="1d", name="refused")
    except CallFailed as error:
        refused = str(error)
    work.wait_for_event("nobody.sends", timeout="0s")
    asked = work.ask("When?", actions=["Now"], timeout="2d", reminders=["4h", timedelta(days=1), 60],
                     escalate_to={"assignees": ["boss"], "after": "1d12h"})
    return {"action": asked["action"], "refused": refused}


handlers = {"flow": flow, "durations": durations, "large": large, "spends": spends, "suspended": suspended, "changed": changed, "missing": missing, "twice": twice, "together": together,
            "failures": failures, "times2": lambda work: work.payload * 2, "divides": lambda work: 1 // work.payload}
Worker(os.environ["LEASEHOLD_URL"], os.environ["LEASEHOLD_KEY"], "python",
       lambda work: handlers[work.job["job_type"]](work), concurrency=4,
       log=lambda message: print(message, file=sys.stderr, flush=True)).run()
