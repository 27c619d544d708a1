"""Calls of BentoML's client: `bento_calls.py DIRECT PROXY`. Two of them do not match the types of the API."""

import contextlib
import sys

import loopback

loopback.end_with_the_test()

import bentoml
import bentoml.exceptions
import compare

CALLERS, CALLS = 32, 3
BAD = {(3, 1): 400, (16, 2): 400}


def call(at, turn):
    """Returns the call of a caller, whose rows have a number of its own."""
    mark = 1000.25 + 4 * at + turn / 4
    rows = [[mark, 1.3, n] for n in range(3 if at % 8 == 5 else 1)]
    status = BAD.get((at, turn), 200)
    if status == 400:
        rows[0][1] = f"no number {mark}"
    return compare.Call({"rows": rows}, f"{mark}", status)


@contextlib.contextmanager
def client(url, at):
    with bentoml.SyncHTTPClient(url, timeout=30) as made:

        def send(call):
            try:
                # Without the schema of the client: a value of the wrong type reaches the server.
                answer = made.request("POST", "/predict", json=call.arguments)
            except bentoml.exceptions.BentoMLException as error:
                return compare.Answer(int(error.error_code), str(error))
            return compare.Answer(answer.status_code, answer.json() if answer.status_code == 200 else answer.text, answer.text)

        def infer(call):
            return compare.Answer(200, made.predict(**call.arguments))

        yield lambda call: infer(call) if call.status == 200 else send(call)


callers = [[call(at, turn) for turn in range(CALLS)] for at in range(CALLERS)]
compare.run(sys.argv[1], sys.argv[2], callers, client, ["bentoml"])
