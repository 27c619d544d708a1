"""A comparison of direct and proxied calls of 64 concurrent OpenAI clients: `openai_calls.py DIRECT PROXY [BAD]`.

Except for ids, `created` and an estimated `usage`, both responses must have the same bytes, and the client must decode
them to the same numbers. BAD is the number of callers with an input that the server refuses. Prints one line of JSON.
"""

import asyncio
import json
import re
import sys
import time

import loopback

loopback.end_with_the_test()

import httpx
import openai

CLIENTS = 64
BAD = int(sys.argv[3]) if len(sys.argv) > 3 else 0
# Every bad call is searched for by isolation, for which the proxy has a small replay budget.
ROUNDS = 1 if BAD else 3


def client(url):
    """Returns a client for a server or proxy."""
    # No retries: they would hide failures.
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0, timeout=30)


def call(at, turn):
    """Returns the arguments of a call: one text in base64, the default of the client, or in the first round another form."""
    text = f"caller {at} asks: " + "word " * (1 + 7 * at % 9) + "å∂\u2028\"\\"
    arguments = {"model": "digest", "input": text}
    if at % 16 == 11 and at // 16 < BAD:
        arguments["input"] = "poison"
    elif turn == 0 and at % 16 == 3:
        arguments["input"] = [text + "a", text + "b", text + "c"]
    elif turn == 0 and at % 16 == 7:
        arguments["input"] = [1000 + at, 2000 + at, 7]
    elif turn == 0 and at == 15:
        arguments["encoding_format"] = "float"
    elif turn == 0 and at == 31:
        arguments["dimensions"] = 8
    return arguments


def masked(body):
    """Returns a body with the id and the creation time masked."""
    body = re.sub(rb'"id":"embd-[0-9a-f]+"', b'"id":"*"', body)
    return re.sub(rb'"created":\d+', b'"created":0', body)


async def fetch(client, arguments):
    """Sends a call and returns its response, raw and decoded."""
    try:
        answer = await client.embeddings.with_raw_response.create(**arguments)
    except openai.APIStatusError as error:
        body = error.response.content
        return {"status": error.status_code, "body": body, "vectors": type(error).__name__, "estimated": False}
    parsed = answer.parse()
    return {
        "status": answer.http_response.status_code,
        "body": answer.content,
        "vectors": [[item.index, list(item.embedding)] for item in parsed.data],
        "id": json.loads(answer.content)["id"],
        "estimated": answer.headers.get("x-groupage-usage") == "estimated",
    }


def difference(direct, proxied):
    """Returns the first unexpected difference between two responses, or None if there is none."""
    mine, theirs = masked(direct["body"]), masked(proxied["body"])
    if proxied["estimated"]:
        usage = re.compile(rb'"usage":\{[^}]*\}')
        mine, theirs = usage.sub(b"", mine), usage.sub(b"", theirs)
    if direct["status"] != proxied["status"]:
        return f"status {direct['status']} and {proxied['status']} {theirs[:200]!r}"
    if mine != theirs:
        return f"{mine[:400]!r} and {theirs[:400]!r}"
    return None if direct["vectors"] == proxied["vectors"] else "the client reads other numbers"


async def main(direct, proxy):
    """Sends every call directly and through the proxy, and prints the comparison."""
    async def caller(client, at):
        return [await fetch(client, call(at, turn)) for turn in range(ROUNDS)]

    async with client(direct) as one, client(proxy) as other, httpx.AsyncClient() as server:
        began = time.monotonic()
        unbatched = {}
        for at in range(CLIENTS):
            for turn in range(ROUNDS):
                arguments = call(at, turn)
                if (key := json.dumps(arguments)) not in unbatched:
                    unbatched[key] = await fetch(one, arguments)
        direct_seconds = time.monotonic() - began
        before = (await server.get(f"{direct}/runs")).json()["runs"]
        began = time.monotonic()
        answers = await asyncio.gather(*(caller(other, at) for at in range(CLIENTS)))
        proxy_seconds = time.monotonic() - began
        runs = (await server.get(f"{direct}/runs")).json()["runs"] - before
    calls = [call(at, turn) for at in range(CLIENTS) for turn in range(ROUNDS)]
    answers = [answer for of_one in answers for answer in of_one]
    faults = [f"{c}: {d}" for c, a in zip(calls, answers) if (d := difference(unbatched[json.dumps(c)], a))]
    equal = len(calls) - len(faults)
    ids = [answer["id"] for answer in answers if "id" in answer]
    if len(set(ids)) != len(ids):
        faults.append("two callers have one id")
    refused = [answer["vectors"] for answer in answers if answer["status"] != 200]
    if refused != ["BadRequestError"] * BAD:
        faults.append(f"expected {BAD} times BadRequestError, actual {refused}")
    print(
        json.dumps(
            {
                "calls": len(calls),
                "runs": runs,
                "equal": equal,
                "estimated": sum(answer["estimated"] for answer in answers),
                "alone": len(unbatched),
                "direct_seconds": round(direct_seconds, 2),
                "proxy_seconds": round(proxy_seconds, 2),
                "faults": faults,
            }
        )
    )


asyncio.run(main(sys.argv[1], sys.argv[2]))
