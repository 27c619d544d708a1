"""Simulated embedding services on uvicorn: `async_service.py KIND`. Prints one line of JSON with the port.

api     FastAPI with async handlers: an embedding takes 50 ms, with unlimited concurrency
one     FastAPI with a model that accepts one text per call: 10 ms, one call at a time; a list is answered with 422
echo    an ASGI application without a framework and without a delay

A response depends only on its texts, so it has the same bytes whether or not calls are merged. The process ends when its standard input closes.
"""

import asyncio
import hashlib
import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests" / "servers"))
import loopback

loopback.end_with_the_test()

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

API_SECONDS, ONE_SECONDS = 0.050, 0.010
app = FastAPI()
kind = sys.argv[1]
slot = asyncio.Lock()


class Texts(BaseModel):
    model: str = "m"
    input: str | list[str]


class OneText(BaseModel):
    model: str = "m"
    input: str


def answer(model, texts):
    """Returns an OpenAI response with a digest of each text as its embedding."""
    digest = lambda text: [byte / 256 for byte in hashlib.sha256(text.encode()).digest()[:8]]
    data = [{"object": "embedding", "index": at, "embedding": digest(text)} for at, text in enumerate(texts)]
    tokens = sum(len(text.split()) for text in texts)
    return {"object": "list", "data": data, "model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


if kind == "api":

    @app.post("/v1/embeddings")
    async def embeddings(call: Texts):
        await asyncio.sleep(API_SECONDS)
        return answer(call.model, [call.input] if isinstance(call.input, str) else call.input)

elif kind == "one":

    @app.post("/v1/embeddings")
    async def embedding(call: OneText):
        async with slot:
            await asyncio.sleep(ONE_SECONDS)
        return answer(call.model, [call.input])


async def echo(scope, receive, send):
    """Answers an HTTP request at once, as a bare ASGI application."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        part = await receive()
        body, more = body + part.get("body", b""), part.get("more_body", False)
    call = json.loads(body) if body else {"input": ""}
    texts = [call["input"]] if isinstance(call["input"], str) else call["input"]
    out = json.dumps(answer(call.get("model", "m"), texts)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(out)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": out})


config = uvicorn.Config(echo if kind == "echo" else app, log_level="warning", access_log=False, lifespan="off")
asyncio.run(uvicorn.Server(config).serve(sockets=[loopback.listen()]))
