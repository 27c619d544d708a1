"""Calls of `requests` to routes of JSON: `requests_calls.py DIRECT PROXY litserve|ray`."""

import contextlib
import sys

import loopback

loopback.end_with_the_test()

import compare
import requests

CALLERS, CALLS = 32, 3


def litserve(at, turn):
    """Returns a call with one number. A text has no square."""
    number = round(3.14159 + 7.7 * at + turn / 100, 5)
    bad = (at, turn) in ((3, 1), (16, 2))
    return compare.Call({"path": "/predict", "json": {"input": f"no number {number}" if bad else number}}, f"{number}", 500 if bad else 200)


def ray(at, turn):
    """Returns a call with one or three texts. The application refuses one text with 500, and pydantic another with 422."""
    mark = f"parcel {at}.{turn}."
    texts = [f"{mark} {n}" for n in range(3 if at % 8 == 5 else 1)]
    status = {(3, 1): 500, (16, 2): 422}.get((at, turn), 200)
    if status == 500:
        texts[0] = f"poison {mark}"
    if status == 422:
        texts[0] = [mark]
    return compare.Call({"path": "/score", "json": {"texts": texts}}, mark, status)


@contextlib.contextmanager
def client(url, at):
    with requests.Session() as session:

        def send(call):
            answer = session.post(url + call.arguments["path"], json=call.arguments["json"], timeout=30)
            is_json = answer.headers.get("content-type", "").startswith("application/json")
            return compare.Answer(answer.status_code, answer.json() if is_json else answer.text, answer.text)

        yield send


kind = {"litserve": litserve, "ray": ray}[sys.argv[3]]
callers = [[kind(at, turn) for turn in range(CALLS)] for at in range(CALLERS)]
compare.run(sys.argv[1], sys.argv[2], callers, client, ["requests"])
