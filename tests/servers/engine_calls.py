"""Calls of 64 concurrent OpenAI clients to a model that the proxy executes itself: `engine_calls.py ADDRESS GOLDENS`.

GOLDENS are texts with their embeddings as the `transformers` library computes them. Every embedding must be that of its text, and have the same numbers
alone and among the other calls. Prints one line of JSON.
"""

import asyncio
import json
import math
import pathlib
import sys

import loopback

loopback.end_with_the_test()

import openai

CLIENTS = 64
# Largest difference of an element of two embeddings of unit length.
DIFFERENCE_MAX = 1e-5


def unit(vector):
    """Returns a vector scaled to unit length."""
    length = math.sqrt(sum(element * element for element in vector))
    return [element / length for element in vector]


def read(path):
    """Returns texts and their embeddings, without pairs and without the empty text, which is refused."""
    cases = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    cases = [case for case in cases if case["text"] and not case.get("pair")]
    return [(case["text"], unit(case.get("embedding") or case["pooled"])) for case in cases]


def call(at, goldens):
    """Returns the arguments of a call, and the embeddings that are expected."""
    count = 3 if at % 8 == 5 else 1
    chosen = [goldens[(at + place) % len(goldens)] for place in range(count)]
    texts = [text for text, _ in chosen]
    arguments = {"model": "any", "input": texts if count > 1 or at % 3 == 1 else texts[0]}
    if at % 4 == 2:
        # The default of the client is base64.
        arguments["encoding_format"] = "float"
    return arguments, [embedding for _, embedding in chosen]


async def embed(client, arguments):
    """Sends a call and returns the embeddings in their order."""
    answer = await client.embeddings.create(**arguments)
    return [item.embedding for item in sorted(answer.data, key=lambda item: item.index)], answer.usage.total_tokens


async def check_errors(client, faults):
    """Checks that the client reads errors, that an empty text is refused, and that a text that is too long is cut."""
    try:
        await client.embeddings.create(model="any", input="a", dimensions=100_000)
        faults.append("too many dimensions are accepted")
    except openai.UnprocessableEntityError as error:
        if "dimensions" not in str(error):
            faults.append(f"the error does not name the field: {error}")
    try:
        await client.embeddings.create(model="any", input=["a", ""])
        faults.append("an empty text is accepted")
    except openai.BadRequestError as error:
        if "cannot be empty" not in str(error):
            faults.append(f"the error does not state that a text is empty: {error}")
    _, tokens = await embed(client, {"model": "any", "input": "a " * 5000})
    if not 0 < tokens < 5000:
        faults.append(f"a text that is too long has {tokens} tokens")


async def main(address, path):
    """Sends every call alone and then among the others, and prints the comparison."""
    goldens = read(path)
    calls = [call(at, goldens) for at in range(CLIENTS)]
    faults, equal, largest = [], 0, 0.0
    # No retries: they would hide failures.
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="sk-test", max_retries=0, timeout=60) as client:
        unbatched = [await embed(client, arguments) for arguments, _ in calls]
        together = await asyncio.gather(*(embed(client, arguments) for arguments, _ in calls))
        for (arguments, expected), one, other in zip(calls, unbatched, together):
            pairs = [(a, b) for found, golden in zip(other[0], expected) for a, b in zip(found, golden)]
            difference = max(abs(a - b) for a, b in pairs)
            largest = max(largest, difference)
            if one != other:
                faults.append(f"{arguments}: other numbers alone")
            elif len(other[0]) != len(expected) or len(pairs) != sum(map(len, expected)) or difference > DIFFERENCE_MAX:
                faults.append(f"{arguments}: differs from its golden value by {difference}")
            else:
                equal += 1
        await check_errors(client, faults)
    report = {"client": f"openai {openai.__version__}", "calls": len(calls), "equal": equal, "largest": largest, "faults": faults}
    print(json.dumps(report))


asyncio.run(main(sys.argv[1], sys.argv[2]))
