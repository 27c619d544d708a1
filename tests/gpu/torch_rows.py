"""Tokens per second of BERT encoders in PyTorch on a GPU, and of a large product: `torch_rows.py`.

The encoder is the usual one in bfloat16: linear layers, `scaled_dot_product_attention` and layer normalisations, executed eagerly, with sequences of equal
length, so that no padding is executed. Each execution includes the copies of the ids and of the pooled vectors. Prints one line of JSON.
"""

import json
import statistics
import time

import torch
import torch.nn.functional as F

LENGTHS, COUNTS = (16, 64, 128, 512), (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Hidden size, layers, heads, inner size.
SHAPES = {"all-MiniLM-L6-v2": (384, 6, 12, 1536), "bge-base": (768, 12, 12, 3072)}
VOCABULARY, POSITIONS = 30522, 512
WARM_UPS, SECONDS, RUNS_MIN, RUNS_MAX = 3, 0.2, 5, 200
# Rows, columns and depth of the product whose rate is the ceiling of the table.
CEILING = 8192
OPTIONS = {"device": "cuda", "dtype": torch.bfloat16}


class Layer(torch.nn.Module):
    def __init__(self, hidden, heads, inner):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.up, self.down = torch.nn.Linear(hidden, inner), torch.nn.Linear(inner, hidden)
        self.first, self.second = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)

    def forward(self, states):
        count, length, hidden = states.shape
        queries, keys, values = self.qkv(states).view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).reshape(count, length, hidden)
        states = self.first(states + self.out(mixed))
        return self.second(states + self.down(F.gelu(self.up(states))))


class Encoder(torch.nn.Module):
    def __init__(self, hidden, layers, heads, inner):
        super().__init__()
        self.words, self.positions = torch.nn.Embedding(VOCABULARY, hidden), torch.nn.Embedding(POSITIONS, hidden)
        self.norm = torch.nn.LayerNorm(hidden)
        self.layers = torch.nn.Sequential(*(Layer(hidden, heads, inner) for _ in range(layers)))

    def forward(self, ids):
        states = self.words(ids) + self.positions.weight[: ids.shape[1]]
        return self.layers(self.norm(states)).mean(dim=1).float()


def median_seconds(run):
    begin, times = time.perf_counter(), []
    for number in range(WARM_UPS + RUNS_MAX):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if number >= WARM_UPS:
            times.append(time.perf_counter() - start)
        if len(times) >= RUNS_MIN and time.perf_counter() - begin >= SECONDS:
            break
    return statistics.median(times)


def measure(shape):
    model = Encoder(*shape).to(**OPTIONS).eval()
    rows = []
    for length in LENGTHS:
        for count in COUNTS:
            ids = torch.randint(VOCABULARY, (count, length)).pin_memory()
            seconds = median_seconds(lambda: model(ids.to("cuda", non_blocking=True)).cpu())
            rows.append({"length": length, "sequences": count, "milliseconds": seconds * 1e3, "tokens_per_second": length * count / seconds})
    return rows


def main():
    with torch.inference_mode():
        left, right = (torch.randn(CEILING, CEILING, **OPTIONS) for _ in range(2))
        ceiling = 2 * CEILING**3 / median_seconds(lambda: left @ right) / 1e12
        models = {name: measure(shape) for name, shape in SHAPES.items()}
    print(json.dumps({"torch": torch.__version__, "ceiling_teraflops": ceiling, "models": models}))


main()
