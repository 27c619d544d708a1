"""A LitServe server with one example a call at `/predict` and OpenAI's embeddings: `litserve_server.py`."""

import hashlib
import os
import tempfile

import loopback

if __name__ == "__main__":
    loopback.end_with_the_test()

import litserve

SIZE = 8


def vector(text):
    """Returns numbers that are a function of the text."""
    return [byte / 256 for byte in hashlib.sha256(text.encode()).digest()[:SIZE]]


class Squares(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["input"]

    def predict(self, x):
        return x**2

    def encode_response(self, output):
        return {"output": output}


class Embeddings(litserve.LitAPI):
    def setup(self, device):
        pass

    def predict(self, inputs):
        return [vector(text) for text in (inputs if isinstance(inputs, list) else [inputs])]


if __name__ == "__main__":
    port = loopback.reserve("port")["port"]
    # The server writes a client beside its working directory.
    os.chdir(tempfile.gettempdir())
    apis = [Squares(api_path="/predict"), Embeddings(spec=litserve.OpenAIEmbeddingSpec())]
    loopback.report(port=port)
    litserve.LitServer(apis, accelerator="cpu", workers_per_device=1).run(
        host="127.0.0.1", port=port, generate_client_file=False, log_level="warning"
    )
