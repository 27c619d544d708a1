"""64 tasks of the OpenAI client, each call direct and then through the proxy: `openai_calls.py DIRECT PROXY [BAD]`.

Ids, `created` and an estimated `usage` aside, every answer has to be the same bytes, and what the client makes of it
the same numbers. BAD is how many callers send an input that the server refuses. Prints one line of JSON.
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
    # No retries: they would hide failures.
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0, timeout=30)


def call(at, turn):
    """Mostly one text in the client's default form, base64; in the first round the other forms of callers too."""
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
    body = re.sub(rb'"id":"embd-[0-9a-f]+"', b'"id":"*"', body)
    return re.sub(rb'"created":\d+', b'"created":0', body)


async def ask(client, arguments):
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


async def main(direct, proxy):
    async def caller(client, at):
        return [await ask(client, call(at, turn)) for turn in range(ROUNDS)]

    async with client(direct) as one, client(proxy) as other, httpx.AsyncClient() as server:
        began = time.monotonic()
        alone = {}
        for at in range(CLIENTS):
            for turn in range(ROUNDS):
                arguments = call(at, turn)
                if (key := json.dumps(arguments)) not in alone:
                    alone[key] = await ask(one, arguments)
        direct_seconds = time.monotonic() - began
        before = (await server.get(f"{direct}/runs")).json()["runs"]
        began = time.monotonic()
        answers = await asyncio.gather(*(caller(other, at) for at in range(CLIENTS)))
        proxy_seconds = time.monotonic() - began
        runs = (await server.get(f"{direct}/runs")).json()["runs"] - before
    calls = [call(at, turn) for at in range(CLIENTS) for turn in range(ROUNDS)]
    answers = [answer for of_one in answers for answer in of_one]
    faults = [f"{c}: {d}" for c, a in zip(calls, answers) if (d := difference(alone[json.dumps(c)], a))]
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
                "alone": len(alone),
                "direct_seconds": round(direct_seconds, 2),
                "proxy_seconds": round(proxy_seconds, 2),
                "faults": faults,
            }
        )
    )


asyncio.run(main(sys.argv[1], sys.argv[2]))
