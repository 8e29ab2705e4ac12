"""A gigabyte of output for a client that is slow at first, through the sandbox dialect.

usage: slow_reader.py URL    (RUNCAP_TOKEN is the token; tests/container.sh calls it)

Prints what it proves, a line each, and ends with the first claim that does not hold.
"""

import http.client
import json
import os
import sys
import time
from urllib.parse import urlsplit

WRITTEN = 1_000_000_000
COMMAND = ["/busybox", "sh", "-c", f"head -c {WRITTEN} /dev/zero | tr '\\0' a"]
SLOW_BYTES_PER_SECOND = 1_000_000
SLOW_SECONDS = 10
READ_BYTES = 64 * 1024
# One event is no larger than what is in flight.
LINE_MAX_BYTES = 1024 * 1024


def main(url):
    """The experiment."""
    events = read_events(ask(url))
    event, _ = next(events)
    assert event["event"] == "start" and event["pid"] > 0, event
    began, written, slow, last = time.monotonic(), 0, True, None
    for event, received in events:
        assert last is None, f"something comes after the exit: {event}"
        if event["event"] == "stdout":
            assert event["data"] == "a" * len(event["data"]), event["data"][:100]
            written += len(event["data"])
        elif event["event"] == "exit":
            last = event
        else:
            assert event == {"event": "ping"}, event
        if slow:
            time.sleep(max(0, began + received / SLOW_BYTES_PER_SECOND - time.monotonic()))
            slow = time.monotonic() < began + SLOW_SECONDS
            if not slow:
                assert last is None and written < WRITTEN // 2, (last, written)
                print(f"ok: {written} bytes in {time.monotonic() - began:.1f} s, and it goes on")
    assert last is not None, f"it breaks off after {written} bytes"
    assert not slow and written == WRITTEN, f"{written} of {WRITTEN} bytes"
    print(f"ok: every one of {WRITTEN} bytes, {time.monotonic() - began:.1f} s in all")
    ended = [last[key] for key in ("exit_code", "signal", "timed_out")]
    assert ended == [0, None, False], last
    print("ok: the last event is the exit of the command, with 0")


def ask(url):
    """The answer to the command, of which nothing is read yet."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=70)
    headers = {"X-Sandbox-Token": os.environ["RUNCAP_TOKEN"], "Content-Type": "application/json"}
    body = json.dumps({"cmd": COMMAND, "timeout": 300})
    connection.request("POST", "/v1/exec", body, headers)
    answer = connection.getresponse()
    assert answer.status == 200, (answer.status, answer.read(1000))
    return answer


def read_events(answer):
    """Each event, and how many bytes of the answer had been read by then."""
    received, rest = 0, b""
    while chunk := answer.read1(READ_BYTES):
        received += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        assert len(rest) <= LINE_MAX_BYTES, f"a line of more than {LINE_MAX_BYTES} bytes"
        for line in lines:
            yield json.loads(line), received
    assert rest == b"", f"the answer ends within a line: {rest[:100]}"


if __name__ == "__main__":
    main(*sys.argv[1:])
