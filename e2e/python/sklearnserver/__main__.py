"""KServe's server for scikit-learn, started as its image starts it: `python -m sklearnserver --model_name=NAME --model_dir=FOLDER`.

PyPI has the package `kserve`, in which all of the server is, and not this module. It is written here as in KServe's own tree
(`python/sklearnserver`), without downloads and without a repository of models.
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
