"""A FastAPI application for uvicorn or gunicorn, with an embeddings route in the format of OpenAI.

The model is a digest: an embedding is a function of its text only, independent of the other texts of a call.
"""

import asyncio
import hashlib

from fastapi import FastAPI
from pydantic import BaseModel

MODEL_SECONDS = 0.02

app = FastAPI()
slot = asyncio.Lock()


class Embeddings(BaseModel):
    model: str
    input: str | list[str]


@app.get("/health")
async def health():
    return {"ready": True}


@app.post("/v1/embeddings")
async def embeddings(call: Embeddings):
    texts = call.input if isinstance(call.input, list) else [call.input]
    async with slot:
        await asyncio.sleep(MODEL_SECONDS)
    vectors = [[byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:8]] for text in texts]
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    tokens = sum(len(text.split()) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": call.model, "usage": usage}
