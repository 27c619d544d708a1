"""HTTP load on `groupage proxy --engine` over loopback, with the load generator of the benchmarks."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

CLIENTS, SECONDS = (1, 8, 64), 10
READY_SECONDS_MAX = 120
# Texts of about 16 to 120 tokens, all different.
BODIES = [json.dumps({"inputs": f"sentence {number}: " + "the quick brown fox jumps over the lazy dog " * (1 + number % 12)}) for number in range(512)]
METRICS = ("groupage_engine_tokens_total", "groupage_engine_padding_tokens_total", "groupage_engine_batches_total", "groupage_engine_sequences_total")


class Failed(Exception):
    """A stage without a result, and the reason."""


@contextlib.contextmanager
def proxy(binary, model, device):
    """Starts the proxy on free ports of the loopback interface. Yields its process, and the line of its log with its addresses."""
    ports = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--admin", "off"]
    command = [binary, "proxy", "--engine", model, "--engine-device", device, "--log-format", "json", *ports]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        lines = []
        for line in process.stderr:
            lines.append(line.strip())
            if json.loads(line).get("msg") == "listening":
                yield process, json.loads(line)
                return
        raise Failed(" | ".join(lines[-5:]) or "the proxy ended without a line")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def wait_ready(process, address):
    end = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < end:
        with contextlib.suppress(urllib.error.URLError):
            urllib.request.urlopen(f"http://{address}/readyz", timeout=10)
            return
        if process.poll() is not None:
            raise Failed(f"the proxy ended with {process.returncode}: {' | '.join(process.stderr.read().splitlines()[-5:])}")
        time.sleep(0.1)
    raise Failed(f"the engine was not ready within {READY_SECONDS_MAX} s")


def read_metrics(address):
    text = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(values.get(name, 0)) for name in METRICS}


def percentile(ordered, share):
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def measure(binary, model, generator, device="Cuda"):
    """Returns one row for each number of clients."""
    rows = []
    with proxy(binary, model, device) as (process, bound):
        wait_ready(process, bound["metrics"])
        port = bound["listen"][0].rsplit(":", 1)[1]
        for clients in CLIENTS:
            before = read_metrics(bound["metrics"])
            command = [sys.executable, generator, port, "/embed", str(SECONDS), str(clients), "one"]
            done = subprocess.run([str(part) for part in command], input="\n".join(BODIES), capture_output=True, text=True, timeout=6 * SECONDS)
            if done.returncode != 0:
                raise Failed(done.stderr.strip()[-500:])
            found = json.loads(done.stdout.splitlines()[-1])
            if set(found["statuses"]) != {"200"}:
                raise Failed(f"{clients} clients: statuses {found['statuses']}")
            if wrong := sum(len(digests) > 1 for digests in found["answers"].values()):
                raise Failed(f"{clients} clients: {wrong} bodies had several answers")
            after, times = read_metrics(bound["metrics"]), sorted(found["times"])
            spent = {name: after[name] - before[name] for name in METRICS}
            batches = max(spent["groupage_engine_batches_total"], 1)
            rows.append({
                "clients": clients, "calls_per_second": len(times) / SECONDS, "p50_ms": percentile(times, 0.5), "p99_ms": percentile(times, 0.99),
                "sequences_per_batch": spent["groupage_engine_sequences_total"] / batches,
                "padding": spent["groupage_engine_padding_tokens_total"] / max(spent["groupage_engine_tokens_total"], 1),
            })
    return {"seconds": SECONDS, "rows": rows}
