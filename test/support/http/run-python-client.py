# Drives the Python client from a test: one command per line on standard input, one JSON answer per line.
import json
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "..", "scripts", "clients", "python"))
from leasehold import Client, LeaseholdError, JobRequest  # noqa: E402

client = Client(os.environ["LEASEHOLD_URL"], os.environ["LEASEHOLD_KEY"])
seen = []
streams = []


def many(count):
    """Each in a thread of its own, as a web server would."""
    ids = []

    def one(n):
        ids.append(client.enqueue("echo", {"n": n}, target_id="t%d" % (n % 5)).id)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ids


def follow():
    """Reads the stream in the background; returns once it is live."""
    live = threading.Event()
    stream = client.events.stream()
    streams.append(stream)

    def read():
        for message in stream:
            if message.kind == "open":
                live.set()
            elif message.kind == "reset":
                seen.append("reset")
            elif message.event is not None and message.event["job_id"]:
                seen.append("%s %s" % (message.event["job_id"], message.event["type"]))

    threading.Thread(target=read, daemon=True).start()
    return live.wait(30)


def fields(error):
    found = {"error": type(error).__name__, "message": str(error)}
    for name in ("status", "code", "errors", "attempts", "may_have_happened"):
        if hasattr(error, name):
            found[name] = getattr(error, name)
    return found


scope = {"client": client, "many": many, "follow": follow, "seen": seen, "streams": streams, "JobRequest": JobRequest}
for line in sys.stdin:
    try:
        answer = {"value": eval(json.loads(line), scope)}
    except LeaseholdError as error:
        answer = fields(error)
    print(json.dumps(answer), flush=True)
