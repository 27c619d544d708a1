"""A FastAPI application on uvicorn with one simulated model, which runs one call at a time.

The model is a digest, so every result is a function of its text only and results differ. A call takes a fixed time plus
a time per item, as on a real model. There are routes for the generic adapter, an embeddings route in the format of
OpenAI, and routes that a proxy passes through.
"""

import asyncio
import base64
import hashlib
import struct
import time
import uuid
from typing import Annotated

import loopback

loopback.end_with_the_test()

import uvicorn
from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

SCORE_SECONDS = 0.012
EMBED_SECONDS = 0.08
ITEM_SECONDS = 0.00005
POISON = "poison"

app = FastAPI()
# Responses are compressed for clients that accept gzip, such as that of OpenAI.
app.add_middleware(GZipMiddleware, minimum_size=200)
slot = asyncio.Lock()
runs = 0
released = {}


async def run(seconds, items):
    """Occupies the model for a fixed time plus a time per item, and counts the run."""
    global runs
    runs += 1
    async with slot:
        await asyncio.sleep(seconds + ITEM_SECONDS * items)


def vector(text, size):
    """Returns `size` numbers of type f32 in [-1, 1), derived from the text."""
    words = struct.unpack(f"<{size}I", hashlib.shake_128(text.encode()).digest(4 * size))
    return [struct.unpack("<f", struct.pack("<f", word / 2**31 - 1))[0] for word in words]


# ---- Generic adapter: lists, and a route for one text with a sibling for many ----

# An empty text is refused by pydantic: 422, and the answer quotes the input.
Text = Annotated[str, Field(min_length=1, max_length=2000)]


class Texts(BaseModel):
    texts: list[Text]
    language: str = "en"


class OneText(BaseModel):
    text: Text


@app.post("/score")
async def score(call: Texts):
    await run(SCORE_SECONDS, len(call.texts))
    if POISON in call.texts:
        raise ValueError("a tensor has the wrong shape")
    results = [{"text": text, "score": vector(call.language + text, 1)[0], "length": len(text)} for text in call.texts]
    return {"model": "digest", "results": results}


@app.post("/vector")
async def one_vector(call: OneText):
    await run(SCORE_SECONDS, 1)
    return {"vector": vector(call.text, 16)}


@app.post("/vectors")
async def many_vectors(call: Texts):
    await run(SCORE_SECONDS, len(call.texts))
    return {"vectors": [vector(text, 16) for text in call.texts]}


# ---- OpenAI ------------------------------------------------------------


class Embeddings(BaseModel):
    model: str
    input: str | list[int] | list[str] | list[list[int]]
    encoding_format: str = "float"
    dimensions: int = 24
    user: str | None = None


@app.post("/v1/embeddings")
async def embeddings(call: Embeddings):
    many = isinstance(call.input, list) and not (call.input and isinstance(call.input[0], int))
    items = call.input if many else [call.input]
    await run(EMBED_SECONDS, len(items))
    if POISON in items:
        error = {"message": "forbidden token", "type": "invalid_request_error", "param": "input", "code": None}
        return JSONResponse({"error": error}, 400)

    def embedding(item):
        floats = vector(f"{call.model} {item}", call.dimensions)
        if call.encoding_format == "base64":
            return base64.b64encode(struct.pack(f"<{call.dimensions}f", *floats)).decode()
        return floats

    data = [{"object": "embedding", "index": at, "embedding": embedding(item)} for at, item in enumerate(items)]
    tokens = sum(len(item.split()) if isinstance(item, str) else len(item) for item in items)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    head = {"id": f"embd-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
    return head | {"model": call.model, "data": data, "usage": usage}


@app.get("/runs")
async def how_often():
    return {"runs": runs}


# ---- Requests that a proxy passes through ------------------------------


@app.post("/upload")
async def upload(request: Request):
    digest, size = hashlib.sha256(), 0
    async for part in request.stream():
        digest.update(part)
        size += len(part)
    return {"sha256": digest.hexdigest(), "bytes": size}


@app.get("/download")
async def download(size: int):
    async def parts():
        for at in range(0, size, 65536):
            yield hashlib.shake_128(str(at).encode()).digest(min(65536, size - at))

    return StreamingResponse(parts(), media_type="application/octet-stream")


@app.get("/events/{name}")
async def events(name: str):
    """Streams two events. The second one is sent after a call of `/release/{name}`."""
    gate = released.setdefault(name, asyncio.Event())

    async def parts():
        yield b"data: first\n\n"
        await gate.wait()
        yield b"data: second\n\n"

    return StreamingResponse(parts(), media_type="text/event-stream")


@app.post("/release/{name}")
async def release(name: str):
    released.setdefault(name, asyncio.Event()).set()
    return {"released": name}


@app.websocket("/echo")
async def echo(socket: WebSocket):
    await socket.accept(subprotocol="echo.v1")
    try:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if message.get("text") == "bye":
                return await socket.close(4001, "as you wish")
            await socket.send(message | {"type": "websocket.send"})
    except WebSocketDisconnect:
        pass


server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
asyncio.run(server.serve(sockets=[loopback.listen()]))
