"""A worker in Python: the jobs of the queue "visuals", one at a time, with the standard library only.

    pip install <the repository>/scripts/clients/python
    LEASEHOLD_KEY=lh_… python3 worker.py
"""
import os
import time

from leasehold import Worker


def render(work):
    frames = int(work.payload.get("frames", 10))
    for frame in range(frames):
        work.check()  # raises Stopped when a person pauses or cancels the job, or the lease is lost
        time.sleep(0.05)  # in place of rendering
        work.report((frame + 1) / frames, "frame %d of %d" % (frame + 1, frames))
    # Pass work.lease_id to the systems that you write to, so that they can refuse a worker that lost its lease.
    return {"frames": frames, "lease": work.lease_id}


if __name__ == "__main__":
    url = os.environ.get("LEASEHOLD_URL", "http://127.0.0.1:8080")
    Worker(url, os.environ["LEASEHOLD_KEY"], queue="visuals", handler=render).run()  # drains on SIGTERM
