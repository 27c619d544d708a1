"""A BentoML service with its own adaptive batching, which returns the sum of each row of numbers.

A batch takes 20 ms plus 1 ms per row, on one worker. A result depends only on its row, so it has the same bytes in any batch.
"""

import time

import bentoml


@bentoml.service(workers=1, traffic={"timeout": 60, "concurrency": 512})
class Sums:
    @bentoml.api(batchable=True, max_batch_size=64, max_latency_ms=10_000)
    def predict(self, rows: list[list[float]]) -> list[float]:
        time.sleep(0.020 + 0.001 * len(rows))
        return [sum(row) for row in rows]
