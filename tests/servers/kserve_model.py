"""A KServe model server with a scikit-learn model, over REST (V1 and V2) and gRPC: `kserve_model.py MODEL`.

The sklearnserver of KServe is not on PyPI; `predict` computes the same as it does with `PREDICT_PROBA=true`. Only the
listening sockets differ: KServe binds all interfaces and fixed ports, and a test binds loopback and any free port.
"""

import sys

import loopback

loopback.end_with_the_test()

import joblib
import kserve
import kserve.model_server
from grpc import aio
from kserve.protocol.rest.server import RESTServer
from kserve.utils.utils import get_predict_input, get_predict_response


class Digits(kserve.Model):
    def __init__(self, path):
        super().__init__("digits")
        self.forest = joblib.load(path)
        self.ready = True

    def predict(self, payload, headers=None, response_headers=None):
        rows = get_predict_input(payload)
        return get_predict_response(payload, self.forest.predict_proba(rows), self.name)


GRPC_PORT = loopback.reserve("grpc_port")["grpc_port"]


class Loopback(RESTServer):
    async def start(self):
        self.create_application()
        await self._server.serve(sockets=[loopback.listen(grpc_port=GRPC_PORT)])


def grpc_server(*args, **options):
    """Creates a gRPC server that listens on loopback in place of all interfaces."""
    server = aio_server(*args, **options)
    add = server.add_insecure_port
    server.add_insecure_port = lambda address: add(address.replace("[::]", "127.0.0.1"))
    return server


aio_server, aio.server = aio.server, grpc_server
kserve.model_server.RESTServer = Loopback
kserve.ModelServer(grpc_port=GRPC_PORT, enable_latency_logging=False).start([Digits(sys.argv[1])])
