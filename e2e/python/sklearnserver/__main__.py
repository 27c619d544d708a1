"""The KServe server for scikit-learn, with the command line of its image: `python -m sklearnserver --model_name=NAME --model_dir=FOLDER`.

The PyPI package `kserve` contains the server but not this module. This is a copy of the one in the KServe repository (`python/sklearnserver`)
without downloads and without a model repository.
"""

import argparse
import pathlib

import joblib
import kserve
from kserve.utils.utils import get_predict_input, get_predict_response

parser = argparse.ArgumentParser(parents=[kserve.model_server.parser])
parser.add_argument("--model_dir", required=True)
args, _ = parser.parse_known_args()


class SKLearnModel(kserve.Model):
    def __init__(self, name, folder):
        super().__init__(name)
        self.model = joblib.load(next(pathlib.Path(folder).glob("*.joblib")))
        self.ready = True

    def predict(self, payload, headers=None, response_headers=None):
        rows = get_predict_input(payload)
        return get_predict_response(payload, self.model.predict(rows), self.name)


if __name__ == "__main__":
    kserve.ModelServer().start([SKLearnModel(args.model_name, args.model_dir)])
