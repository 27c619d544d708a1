"""A BentoML service that batches by itself: rows of numbers in, one number for each out.

A batch takes 20 ms and 1 ms for each row, on one worker. A result depends on its row alone, so it has the same bytes in any company.
"""

import time

import bentoml


@bentoml.service(workers=1, traffic={"timeout": 60, "concurrency": 512})
class Sums:
    @bentoml.api(batchable=True, max_batch_size=64, max_latency_ms=10_000)
    def predict(self, rows: list[list[float]]) -> list[float]:
        time.sleep(0.020 + 0.001 * len(rows))
        return [sum(row) for row in rows]
