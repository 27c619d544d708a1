"""A BentoML service in the form of its guide: `bentoml serve service:Sums`."""

import bentoml


@bentoml.service
class Sums:
    @bentoml.api
    def sums(self, rows: list[list[float]]) -> list[float]:
        return [sum(row) for row in rows]
