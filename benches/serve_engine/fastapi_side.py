"""The other side of the bench `serve_engine`: MiniLM behind FastAPI, on onnxruntime in f32.

    fastapi_side.py MODEL_DIRECTORY

Prints its port. The endpoint is a plain function, as in most servers of this kind: FastAPI runs it on
its pool of threads, and each call is one run of the session, which uses all cores. The graph is the
one of the bench `encode`. uvicorn uses uvloop and httptools, which are installed.
"""

import json
import pathlib
import socket
import sys

import fastapi
import numpy
import onnxruntime
import pydantic
import tokenizers
import uvicorn
from safetensors.numpy import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "encode"))
from onnxruntime_side import build  # noqa: E402


class EmbedCall(pydantic.BaseModel):
    inputs: str


def create_app(directory):
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    # Its own settings are leftovers of training: the model takes the length of this file.
    length = json.loads((directory / "sentence_bert_config.json").read_text())["max_seq_length"]
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    graph = build(load_file(str(directory / "model.safetensors")))
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    app = fastapi.FastAPI()

    @app.post("/embed")
    def embed(call: EmbedCall) -> list[list[float]]:
        ids = numpy.array([tokenizer.encode(call.inputs).ids], dtype=numpy.int32)
        return session.run(None, {"ids": ids, "types": ids * 0})[0].tolist()

    return app


def main():
    app = create_app(pathlib.Path(sys.argv[1]))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    uvicorn.run(app, fd=listener.fileno(), log_level="warning", access_log=False)


main()
