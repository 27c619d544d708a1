"""Checks of streams, WebSockets and compression through the proxy with common clients: `passed_on.py PROXY`. Prints one line of JSON."""

import asyncio
import json
import sys

import loopback

loopback.end_with_the_test()

import httpx
import websockets


async def a_stream_arrives_as_it_is_made(url):
    async with httpx.AsyncClient(timeout=10) as client:
        async with client.stream("GET", f"{url}/events/one") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream"), answer.headers
            parts = answer.aiter_raw()
            first = await anext(parts)
            assert first == b"data: first\n\n", first
            # A proxy that buffers the complete stream never reaches this line.
            released = await client.post(f"{url}/release/one")
            assert released.json() == {"released": "one"}, released.text
            rest = b"".join([part async for part in parts])
            assert rest == b"data: second\n\n", rest


async def a_websocket_carries_text_and_bytes(url):
    address = url.replace("http:", "ws:") + "/echo"
    async with websockets.connect(address, subprotocols=["echo.v1"], open_timeout=10, max_size=None) as socket:
        assert socket.subprotocol == "echo.v1", socket.subprotocol
        for message in ["text", "å∂", b"\x00\xff" * 1000, "x" * 500_000, *(str(n) for n in range(100))]:
            await socket.send(message)
            echoed = await asyncio.wait_for(socket.recv(), 10)
            assert echoed == message, (message[:40], echoed[:40])
        await socket.send("bye")
        await asyncio.wait_for(socket.wait_closed(), 10)
        assert (socket.close_code, socket.close_reason) == (4001, "as you wish"), socket.close_code


async def compressed_answers_stay_compressed(url):
    async with httpx.AsyncClient(timeout=10) as client:
        answer = await client.get(f"{url}/openapi.json", headers={"accept-encoding": "gzip"})
        assert answer.headers["content-encoding"] == "gzip", answer.headers
        assert "/v1/embeddings" in answer.json()["paths"]


CHECKS = [a_stream_arrives_as_it_is_made, a_websocket_carries_text_and_bytes, compressed_answers_stay_compressed]


async def main(url):
    """Runs all checks and prints the number of checks and the faults."""
    faults = []
    for check in CHECKS:
        try:
            await asyncio.wait_for(check(url), 20)
        except Exception as error:
            # Every exception is reported as a fault.
            faults.append(f"{check.__name__}: {type(error).__name__} {error}")
    print(json.dumps({"checks": len(CHECKS), "faults": faults}))


asyncio.run(main(sys.argv[1]))
