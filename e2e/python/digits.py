"""A KServe model server in a pod on the default port 8080: `digits.py MODEL`, with the output of `tests/servers/train.py`.

The server listens once the model file exists, like servers that download their model first.
"""

import os
import sys
import time

import joblib
import kserve
from kserve.utils.utils import get_predict_input, get_predict_response


class Digits(kserve.Model):
    def __init__(self, path):
        super().__init__("digits")
        self.forest = joblib.load(path)
        self.ready = True

    def predict(self, payload, headers=None, response_headers=None):
        rows = get_predict_input(payload)
        return get_predict_response(payload, self.forest.predict_proba(rows), self.name)


while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
kserve.ModelServer(http_port=8080, enable_grpc=False, enable_latency_logging=False).start([Digits(sys.argv[1])])
