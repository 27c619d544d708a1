"""Calls of Triton's clients for the Open Inference Protocol: `triton_calls.py DIRECT PROXY http|binary|grpc ROWS OUTPUT`.

With `http`, tensors are JSON, with `binary` they follow the header. Each caller sends three calls with one row, some with three rows. Two
of them have a value that the forest refuses.
"""

import contextlib
import json
import pathlib
import sys

import loopback

loopback.end_with_the_test()

import compare
import numpy
from tritonclient.utils import InferenceServerException

CALLERS, CALLS = 32, 3
PROTOCOL, MODEL, OUTPUT = sys.argv[3], "digits", sys.argv[5]
ROWS = [json.loads(line) for line in pathlib.Path(sys.argv[4]).read_text(encoding="utf-8").splitlines()]
# The client for gRPC has the name of the status, that for HTTP has no status if the body is not
# JSON.
REFUSED = {"http": 500, "binary": 500, "grpc": 13}

if PROTOCOL == "grpc":
    import tritonclient.grpc as triton
else:
    # The first wait of gevent has to be in the thread that uses the client.
    import tritonclient.http as triton


def call(at, turn):
    """Returns the call of a caller, whose first number is not a pixel: it marks the row."""
    mark = 1000.25 + 4 * at + turn / 4
    rows = [list(ROWS[(7 * at + 131 * turn + n) % len(ROWS)]) for n in range(3 if at % 8 == 5 else 1)]
    rows[0][0] = mark
    bad = (at, turn) in ((3, 1), (17, 2))
    if bad:
        # No f32 can represent it.
        rows[0][1] = 1e39
    return compare.Call({"rows": rows}, f"{mark}", REFUSED[PROTOCOL] if bad else 200)


def number(error):
    """Returns the status of an exception as a number."""
    status = str(error.status() or "")
    names = {"StatusCode.INTERNAL": 13, "StatusCode.INVALID_ARGUMENT": 3, "StatusCode.UNKNOWN": 2, "StatusCode.UNAVAILABLE": 14}
    return int(status) if status.isdigit() else names.get(status, 0)


def infer(made, call):
    rows = numpy.array(call.arguments["rows"], dtype=numpy.float64)
    tensor = triton.InferInput("input-0", list(rows.shape), "FP64")
    if PROTOCOL == "grpc":
        tensor.set_data_from_numpy(rows)
        wanted = [triton.InferRequestedOutput(OUTPUT)]
    else:
        tensor.set_data_from_numpy(rows, binary_data=PROTOCOL == "binary")
        wanted = [triton.InferRequestedOutput(OUTPUT, binary_data=False)]
    try:
        result = made.infer(MODEL, [tensor], outputs=wanted, request_id=call.marker)
    except InferenceServerException as error:
        return compare.Answer(number(error), error.message())
    answer = result.get_response() if PROTOCOL != "grpc" else result.get_response(as_json=True)
    outputs = result.as_numpy(OUTPUT)
    # The client for gRPC returns the raw bytes, too.
    answer.pop("raw_output_contents", None)
    return compare.Answer(200, [answer.get("id"), answer["model_name"], outputs.shape, outputs.tolist()], repr(answer))


@contextlib.contextmanager
def client(url, at):
    options = {"channel_args": [("grpc.use_local_subchannel_pool", 1)]} if PROTOCOL == "grpc" else {}
    made = triton.InferenceServerClient(url.removeprefix("http://"), **options)
    yield lambda call: infer(made, call)
    made.close()


callers = [[call(at, turn) for turn in range(CALLS)] for at in range(CALLERS)]
compare.run(sys.argv[1], sys.argv[2], callers, client, ["tritonclient"])
