"""A closed-loop load generator on kept-alive connections: `load.py PORT PATH SECONDS CALLERS own|one < BODIES`.

Standard input contains one body per line. `own` gives each caller an API key of its own. The last line of standard output is JSON: latencies in
milliseconds, counts by status, and for each body the digests of its responses, so that two runs can be compared.
"""

import asyncio
import collections
import hashlib
import json
import sys
import time

CALL_SECONDS_MAX = 60


async def call(reader, writer, request):
    """Sends a request and returns the status, the body, and whether the server closes the connection."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head.split(b" ", 2)[1])
    headers = dict(line.split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    if b"chunked" in headers.get(b"transfer-encoding", b""):
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers[b"content-length"]))
    return status, body, b"close" in headers.get(b"connection", b"")


def same(body):
    """Returns the part of a response that must be equal in all runs: `data` if present, since a gateway adds ids and times."""
    try:
        data = json.loads(body).get("data")
    except (ValueError, AttributeError):
        data = None
    return json.dumps(data).encode() if data else body


async def main():
    """Runs the callers for the given time and prints the measurements."""
    port, path, seconds, callers, keys = sys.argv[1:6]
    bodies = sys.stdin.read().splitlines()
    times, statuses, answers = [], collections.Counter(), collections.defaultdict(set)
    end = time.monotonic() + float(seconds)

    async def caller(number):
        key = f"authorization: Bearer key-{number}\r\n" if keys == "own" else ""
        streams, at = None, number
        while time.monotonic() < end:
            place = at % len(bodies)
            body = bodies[place].encode()
            at += 7
            head = (f"POST {path} HTTP/1.1\r\nhost: model\r\n{key}content-type: application/json\r\n"
                    f"content-length: {len(body)}\r\n\r\n")
            begun = time.monotonic()
            try:
                if streams is None:
                    streams = await asyncio.open_connection("127.0.0.1", int(port))
                status, answer, close = await asyncio.wait_for(call(*streams, head.encode() + body), CALL_SECONDS_MAX)
            except (OSError, EOFError, asyncio.TimeoutError):
                status, answer, close = 0, b"", True
            ended = time.monotonic()
            if close and streams is not None:
                streams[1].close()
                streams = None
            if ended > end:
                return
            statuses[status] += 1
            if status == 200:
                times.append((ended - begun) * 1e3)
                answers[place].add(hashlib.sha256(same(answer)).hexdigest()[:16])

    await asyncio.gather(*(caller(number) for number in range(int(callers))))
    print(json.dumps({"times": times, "statuses": statuses, "answers": {at: sorted(all) for at, all in answers.items()}}))


asyncio.run(main())
