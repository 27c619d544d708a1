"""A LitServe server in the form of its guide: `python server.py`. Only the call of `run` sets its address."""

import litserve


class Squares(litserve.LitAPI):
    def setup(self, device):
        self.model = lambda x: x**2

    def decode_request(self, request):
        return request["input"]

    def predict(self, x):
        return self.model(x)

    def encode_response(self, output):
        return {"output": output}


if __name__ == "__main__":
    litserve.LitServer(Squares(), accelerator="cpu").run(port=8000)
