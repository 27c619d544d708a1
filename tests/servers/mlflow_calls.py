"""Calls of MLflow's client and of `requests`, in all four forms: `mlflow_calls.py DIRECT PROXY ROWS`."""

import contextlib
import json
import pathlib
import sys

import loopback

loopback.end_with_the_test()

import compare
import pandas
import requests
from mlflow.pyfunc.scoring_server.client import ScoringServerClient

CALLERS, CALLS = 32, 3
ROWS = [json.loads(line) for line in pathlib.Path(sys.argv[3]).read_text(encoding="utf-8").splitlines()]
COLUMNS = [f"pixel{at}" for at in range(64)]


def call(at, turn):
    """Returns the call of a caller in one of the forms. Its first number is not a pixel: it marks the row."""
    mark = 1000.25 + 4 * at + turn / 4
    rows = [list(ROWS[(7 * at + 131 * turn + n) % len(ROWS)]) for n in range(3 if at % 8 == 5 else 1)]
    rows[0][0] = mark
    bad = (at, turn) in ((3, 1), (16, 2))
    if bad:
        # The forest refuses a value that no f32 can represent.
        rows[0][1] = 1e39
    return compare.Call({"form": ("client", "split", "records", "inputs")[at % 4], "rows": rows}, f"{mark}", 400 if bad else 200)


def body(form, rows):
    """Returns the document of a call in the form."""
    if form == "split":
        return {"dataframe_split": {"columns": COLUMNS, "data": rows}}
    if form == "records":
        return {"dataframe_records": [dict(zip(COLUMNS, row)) for row in rows]}
    return {"inputs": rows}


def failure(status, text):
    """Returns an answer without the traces of the server, which name its files."""
    return compare.Answer(status, json.loads(text).get("error_code"), text)


@contextlib.contextmanager
def client(url, at):
    host, port = url.removeprefix("http://").split(":")
    mlflow, session = ScoringServerClient(host, int(port)), requests.Session()

    def send(call):
        form, rows = call.arguments["form"], call.arguments["rows"]
        if form == "client":
            try:
                return compare.Answer(200, dict(mlflow.invoke(pandas.DataFrame(rows, columns=COLUMNS))))
            except Exception as error:
                # The client raises nothing more specific.
                text = str(error)
                status = int(text.split("error code ")[1].split(",")[0])
                return failure(status, text.split("response: ", 1)[1].removesuffix(")"))
        answer = session.post(f"{url}/invocations", json=body(form, rows), timeout=30)
        if answer.status_code != 200:
            return failure(answer.status_code, answer.text)
        return compare.Answer(200, answer.json(), answer.text)

    yield send
    session.close()


callers = [[call(at, turn) for turn in range(CALLS)] for at in range(CALLERS)]
compare.run(sys.argv[1], sys.argv[2], callers, client, ["mlflow", "requests"])
