"""A KServe model server with a scikit-learn model and the V1 protocol: `kserve_model.py MODEL`.

The sklearnserver of KServe is not on PyPI; `predict` computes the same as it does with `PREDICT_PROBA=true`. Only the
listening socket differs: KServe binds all interfaces and a fixed port, and a test binds loopback and any free port.
"""

import sys

import loopback

loopback.end_with_the_test()

import joblib
import kserve
import kserve.model_server
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


class Loopback(RESTServer):
    async def start(self):
        self.create_application()
        await self._server.serve(sockets=[loopback.listen()])


kserve.model_server.RESTServer = Loopback
kserve.ModelServer(enable_grpc=False, enable_latency_logging=False).start([Digits(sys.argv[1])])
