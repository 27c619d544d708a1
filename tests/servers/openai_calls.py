"""64 tasks of the OpenAI client, each call direct and then through the proxy: `openai_calls.py DIRECT PROXY [BAD]`.

Ids, `created` and an estimated `usage` aside, every answer has to be the same bytes, and what the client makes of it
the same numbers. BAD is how many callers send an input that the server refuses. Prints one line of JSON.
"""

import asyncio
import json
import re
import sys
import time

import httpx
import openai

import loopback

CLIENTS, ROUNDS = 64, 2
BAD = int(sys.argv[3]) if len(sys.argv) > 3 else 0


def client(url):
    # No retries: the client would hide what they make good.
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0, timeout=30)


def call(at, turn):
    """Mostly one text in the client's default form, base64; beside it the other forms that callers use."""
    text = f"caller {at} asks {turn}: " + "word " * (1 + (7 * at + turn) % 9) + "å∂\u2028\"\\"
    arguments = {"model": "digest", "input": text}
    if turn == 1 and at % 16 == 11 and at // 16 < BAD:
        arguments["input"] = "poison"
    elif at % 16 == 3:
        arguments["input"] = [text + "a", text + "b", text + "c"]
    elif at % 16 == 7:
        arguments["input"] = [1000 + at, 2000 + turn, 7]
    elif at == 15:
        arguments["encoding_format"] = "float"
    elif at == 31:
        arguments["dimensions"] = 8
    return arguments


def masked(body):
    body = re.sub(rb'"id":"embd-[0-9a-f]+"', b'"id":"*"', body)
    return re.sub(rb'"created":\d+', b'"created":0', body)


async def ask(client, arguments):
    try:
        answer = await client.embeddings.with_raw_response.create(**arguments)
    except openai.APIStatusError as error:
        return {"status": error.status_code, "body": error.response.content, "vectors": type(error).__name__, "estimated": False}
    parsed = answer.parse()
    return {
        "status": answer.http_response.status_code,
        "body": answer.content,
        "vectors": [[item.index, list(item.embedding)] for item in parsed.data],
        "tokens": parsed.usage.prompt_tokens,
        "id": json.loads(answer.content)["id"],
        "estimated": answer.headers.get("x-groupage-usage") == "estimated",
    }


def difference(direct, proxied):
    """What is not as it has to be."""
    mine, theirs = masked(direct["body"]), masked(proxied["body"])
    if proxied["estimated"]:
        usage = re.compile(rb'"usage":\{[^}]*\}')
        mine, theirs = usage.sub(b"", mine), usage.sub(b"", theirs)
    if direct["status"] != proxied["status"]:
        return f"status {direct['status']} and {proxied['status']} {theirs[:200]!r}"
    if mine != theirs:
        return f"{mine[:400]!r} and {theirs[:400]!r}"
    return None if direct["vectors"] == proxied["vectors"] else "the client reads other numbers"


async def all_of(client):
    async def caller(at):
        return [await ask(client, call(at, turn)) for turn in range(ROUNDS)]

    began = time.monotonic()
    answers = sum(await asyncio.gather(*(caller(at) for at in range(CLIENTS))), [])
    return answers, time.monotonic() - began


async def main(direct, proxy):
    async with client(direct) as one, client(proxy) as other, httpx.AsyncClient() as server:
        expected, direct_seconds = await all_of(one)
        before = (await server.get(f"{direct}/runs")).json()["runs"]
        actual, proxy_seconds = await all_of(other)
        runs = (await server.get(f"{direct}/runs")).json()["runs"] - before
    calls = [call(at, turn) for at in range(CLIENTS) for turn in range(ROUNDS)]
    differences = [f"{a}: {d}" for a, d in zip(calls, map(difference, expected, actual)) if d]
    ids = [answer["id"] for answer in actual if "id" in answer]
    if len(set(ids)) != len(ids):
        differences.append("two callers have one id")
    refused = [answer for answer in actual if answer["status"] != 200]
    if [answer["vectors"] for answer in refused] != ["BadRequestError"] * BAD:
        differences.append(f"expected {BAD} times BadRequestError, actual {refused}")
    print(
        json.dumps(
            {
                "calls": len(calls),
                "runs": runs,
                "equal": len(calls) - sum(1 for e, a in zip(expected, actual) if difference(e, a)),
                "estimated": sum(answer["estimated"] for answer in actual),
                "direct_seconds": round(direct_seconds, 2),
                "proxy_seconds": round(proxy_seconds, 2),
                "faults": differences,
            }
        )
    )


loopback.end_with_the_test()
asyncio.run(main(sys.argv[1], sys.argv[2]))
