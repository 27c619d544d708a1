"""A causal language model of `transformers` behind FastAPI, with OpenAI's completions, chat and embeddings: `generate_server.py`.

The model has the architecture of GPT-2, three small layers and random weights, and runs on the CPU in JAX, which PyPI has without CUDA. Its tokenizer is
built here from the bytes. Decoding is greedy, so a prompt has the same text alone and in a batch. One
call runs at a time, as on a server that does not batch by itself.
"""

import asyncio
import json
import time
import uuid

import loopback

loopback.end_with_the_test()

import flax
import jax
import jax.numpy as jnp
import numpy
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import FlaxGPT2LMHeadModel, GPT2Config, PreTrainedTokenizerFast

CONTEXT, LAYERS, WIDTH, HEADS = 160, 3, 128, 4
# Batches are padded to one of these sizes, each of which is compiled once.
SIZES = (1, 8, 32)


def byte_tokenizer():
    """Builds a tokenizer with a token for each printable ASCII character."""
    letters = {chr(code): code - 31 for code in range(32, 127)} | {"<pad>": 0, "\n": 96}
    made = Tokenizer(models.WordLevel(letters, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>")


tokenizer = byte_tokenizer()
config = GPT2Config(
    vocab_size=97, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, bos_token_id=0, eos_token_id=0,
    # With random weights, an output layer that is the input layer repeats the last token.
    tie_word_embeddings=False, initializer_range=0.1,
)
model = FlaxGPT2LMHeadModel(config, seed=7)
slot, runs = asyncio.Lock(), 0
app = FastAPI()


class Refused(Exception):
    """A call that the server refuses with 400."""


@jax.jit
def step(parameters, ids, lengths):
    """Returns the most likely next token of each row, and the mean of its last hidden states."""
    mask = (jnp.arange(ids.shape[1]) < lengths[:, None]).astype("i4")
    out = model(ids, attention_mask=mask, params=parameters, output_hidden_states=True)
    rows = jnp.arange(ids.shape[0])
    logits = out.logits[rows, lengths - 1].at[:, 0].set(-jnp.inf)
    return jnp.argmax(logits, axis=-1), out.hidden_states[-1][rows, lengths - 1]


def encode(prompts):
    """Returns the token ids of the prompts."""
    rows = [prompt if isinstance(prompt, list) else tokenizer(prompt)["input_ids"] for prompt in prompts]
    for row, prompt in zip(rows, prompts):
        if not row or len(row) >= CONTEXT or max(row) >= config.vocab_size:
            raise Refused(f"the prompt {prompt!r} is not valid")
    return rows


def padded(rows):
    """Returns the rows in one array of a compiled size, and their lengths."""
    size = next((size for size in SIZES if size >= len(rows)), len(rows))
    ids = numpy.zeros((size, CONTEXT), dtype="i4")
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
    return ids, numpy.array([len(row) for row in rows] + [1] * (size - len(rows)), dtype="i4")


async def generate(rows, tokens):
    """Yields the next token of every row, `tokens` times."""
    if any(len(row) + tokens > CONTEXT for row in rows):
        raise Refused(f"at most {CONTEXT} tokens, with those that are generated")
    ids, lengths = padded(rows)
    for _ in range(tokens):
        token = numpy.asarray((await asyncio.to_thread(step, model.params, ids, lengths))[0])
        ids[numpy.arange(len(ids)), lengths] = token
        lengths += 1
        yield [int(one) for one in token[: len(rows)]]


def refusal(error):
    body = {"message": str(error), "type": "invalid_request_error", "param": "prompt", "code": None}
    return JSONResponse({"error": body}, 400)


def event(document):
    return f"data: {json.dumps(document)}\n\n"


# ---- Completions -----------------------------------------------------------


class Completion(BaseModel):
    model: str
    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int = 16
    stream: bool = False
    temperature: float = 0.0


def prompts_of(prompt):
    """Returns the list of prompts of a call."""
    many = isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int))
    return prompt if many else [prompt]


def head(kind, model):
    return {"id": f"cmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


@app.post("/v1/completions")
async def completions(call: Completion):
    global runs
    try:
        rows = encode(prompts_of(call.prompt))
        if any(len(row) + call.max_tokens > CONTEXT for row in rows):
            raise Refused(f"at most {CONTEXT} tokens, with those that are generated")
    except Refused as error:
        return refusal(error)
    runs += 1
    if call.stream:
        return StreamingResponse(completion_events(call, rows), media_type="text/event-stream")
    texts = [""] * len(rows)
    async with slot:
        async for tokens in generate(rows, call.max_tokens):
            texts = [text + tokenizer.decode([token]) for text, token in zip(texts, tokens)]
    choices = [{"index": at, "text": text, "logprobs": None, "finish_reason": "length"} for at, text in enumerate(texts)]
    made, given = call.max_tokens * len(rows), sum(len(row) for row in rows)
    usage = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
    return head("text_completion", call.model) | {"choices": choices, "usage": usage}


async def completion_events(call, rows):
    """Streams a chunk for each token of each prompt."""
    first, left = head("text_completion", call.model), call.max_tokens
    async with slot:
        async for tokens in generate(rows, call.max_tokens):
            left -= 1
            for at, token in enumerate(tokens):
                reason = None if left else "length"
                choice = {"index": at, "text": tokenizer.decode([token]), "logprobs": None, "finish_reason": reason}
                yield event(first | {"choices": [choice]})
    yield "data: [DONE]\n\n"


# ---- Chat ------------------------------------------------------------------


class Chat(BaseModel):
    model: str
    messages: list[dict]
    max_tokens: int = 16
    stream: bool = False
    temperature: float = 0.0


@app.post("/v1/chat/completions")
async def chat(call: Chat):
    global runs
    try:
        # The role precedes each message, as in a chat template.
        rows = encode(["\n".join(f"{message['role']}: {message['content']}" for message in call.messages)])
        if len(rows[0]) + call.max_tokens > CONTEXT:
            raise Refused(f"at most {CONTEXT} tokens, with those that are generated")
    except Refused as error:
        return refusal(error)
    runs += 1
    if call.stream:
        return StreamingResponse(chat_events(call, rows), media_type="text/event-stream")
    text = ""
    async with slot:
        async for tokens in generate(rows, call.max_tokens):
            text += tokenizer.decode(tokens)
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": len(rows[0]), "completion_tokens": call.max_tokens, "total_tokens": len(rows[0]) + call.max_tokens}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return head("chat.completion", call.model) | {"choices": [choice], "usage": usage}


async def chat_events(call, rows):
    """Streams a chunk for each token."""
    first = head("chat.completion.chunk", call.model)
    async with slot:
        async for tokens in generate(rows, call.max_tokens):
            yield event(first | {"choices": [{"index": 0, "delta": {"content": tokenizer.decode(tokens)}, "finish_reason": None}]})
    yield event(first | {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    yield "data: [DONE]\n\n"


# ---- Embeddings ------------------------------------------------------------


class Embeddings(BaseModel):
    model: str
    input: str | list[int] | list[str] | list[list[int]]
    encoding_format: str = "float"


@app.post("/v1/embeddings")
async def embeddings(call: Embeddings):
    global runs
    try:
        rows = encode(prompts_of(call.input))
    except Refused as error:
        return refusal(error)
    runs += 1
    async with slot:
        ids, lengths = padded(rows)
        hidden = numpy.asarray((await asyncio.to_thread(step, model.params, ids, lengths))[1])
    # Three digits: the last bits depend on the size of the batch.
    data = [
        {"object": "embedding", "index": at, "embedding": [float(f"{x:.3g}") for x in hidden[at, :8]]} for at in range(len(rows))
    ]
    tokens = sum(len(row) for row in rows)
    return {"object": "list", "data": data, "model": call.model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


@app.get("/runs")
async def how_often():
    return {"runs": runs}


for size in SIZES:
    step(model.params, *padded([[1]] * size))
server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
asyncio.run(server.serve(sockets=[loopback.listen()]))
