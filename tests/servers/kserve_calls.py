"""Calls of KServe's own clients: `kserve_calls.py DIRECT PROXY PROTOCOL ROWS`. The protocol is v1, v2 or grpc; ROWS is a file with a row a line.

Each caller sends two calls with one row, some with three rows. Two of them have a value that the forest refuses.
"""

import asyncio
import contextlib
import json
import logging
import pathlib
import sys

import loopback

loopback.end_with_the_test()

import compare
import grpc
import httpx
import numpy
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

# The client logs every refused call.
logging.disable(logging.CRITICAL)

CALLERS, CALLS = 24, 2
PROTOCOL = sys.argv[3]
ROWS = [json.loads(line) for line in pathlib.Path(sys.argv[4]).read_text(encoding="utf-8").splitlines()]


def call(at, turn):
    """Returns the call of a caller, whose first number is not a pixel: it marks the row."""
    mark = 1000.25 + 4 * at + turn / 4
    rows = [list(ROWS[(7 * at + 131 * turn + n) % len(ROWS)]) for n in range(3 if at % 8 == 5 else 1)]
    rows[0][0] = mark
    bad = (at, turn) in ((3, 1), (17, 0))
    if bad:
        # No f32 can represent it.
        rows[0][1] = 1e39
    status = 200 if not bad else 13 if PROTOCOL == "grpc" else 500
    return compare.Call({"rows": rows}, f"{mark}", status)


def request(call):
    """Returns a request of the Open Inference Protocol."""
    rows = numpy.array(call.arguments["rows"], dtype=numpy.float64)
    tensor = InferInput(name="input-0", shape=list(rows.shape), datatype="FP64")
    tensor.set_data_from_numpy(rows, binary_data=False)
    return InferRequest(model_name="digits", infer_inputs=[tensor], request_id=call.marker)


def tensors(answer):
    """Returns the parts of an answer that a caller reads."""
    outputs = [[tensor.name, tensor.shape, tensor.datatype, tensor.as_numpy().tolist()] for tensor in answer.outputs]
    return [answer.id, answer.model_name, outputs]


def rest(url, call, client):
    try:
        if PROTOCOL == "v1":
            done = client.infer(url, {"instances": call.arguments["rows"]}, model_name="digits")
            return compare.Answer(200, asyncio_run(done))
        return compare.Answer(200, tensors(asyncio_run(client.infer(url, request(call), model_name="digits"))))
    except httpx.HTTPStatusError as error:
        return compare.Answer(error.response.status_code, error.response.text)


def over_grpc(call, client):
    try:
        return compare.Answer(200, tensors(asyncio_run(client.infer(request(call)))))
    except grpc.aio.AioRpcError as error:
        return compare.Answer(error.code().value[0], error.details())


def asyncio_run(work):
    """Runs work on the loop of this thread."""
    return asyncio.get_event_loop().run_until_complete(work)


@contextlib.contextmanager
def client(url, at):
    asyncio.set_event_loop(asyncio.new_event_loop())
    if PROTOCOL == "grpc":
        # A channel for each caller; by default, all clients of a process share one.
        local = [("grpc.use_local_subchannel_pool", 1)]
        made = InferenceGRPCClient(url.removeprefix("http://"), channel_args=local, retries=2)
        send = lambda call: over_grpc(call, made)
    else:
        made = InferenceRESTClient(RESTConfig(protocol=PROTOCOL, retries=0, timeout=30))
        send = lambda call: rest(url, call, made)
    yield send
    asyncio_run(made.close())


callers = [[call(at, turn) for turn in range(CALLS)] for at in range(CALLERS)]
compare.run(sys.argv[1], sys.argv[2], callers, client, ["kserve"])
