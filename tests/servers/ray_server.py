"""A FastAPI application on Ray Serve, with one replica: `ray_server.py FOLDER`. A call takes 10 ms plus 0.2 ms a text."""

import asyncio
import hashlib
import os
import sys

import loopback

loopback.end_with_the_test()

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")

import ray
from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve

app = FastAPI()


class Texts(BaseModel):
    texts: list[str]


@serve.deployment(num_replicas=1, max_ongoing_requests=64, ray_actor_options={"num_cpus": 0.5})
@serve.ingress(app)
class Scores:
    def __init__(self):
        self.slot = asyncio.Lock()

    @app.post("/score")
    async def score(self, call: Texts):
        async with self.slot:
            await asyncio.sleep(0.010 + 0.0002 * len(call.texts))
        if any(text.startswith("poison") for text in call.texts):
            raise ValueError("a tensor has the wrong shape")
        results = [{"score": hashlib.sha256(text.encode()).digest()[0] / 256, "text": text} for text in call.texts]
        return {"results": results}


port = loopback.reserve("port")["port"]
ray.init(
    num_cpus=2, include_dashboard=False, object_store_memory=100 * 1024 * 1024, _temp_dir=sys.argv[1], log_to_driver=False,
    _node_ip_address="127.0.0.1",
)
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(Scores.bind(), name="scores")
loopback.report(port=port)
loopback.wait()
