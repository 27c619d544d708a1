"""HTTP load on `groupage proxy` with a model over loopback, with the load generator of the benchmarks."""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
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
def proxy(binary, model, device, batch_invariant):
    """Starts the proxy on free ports of the loopback interface. Yields its process, and the line of its log with its addresses."""
    ports = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--admin", "off"]
    with tempfile.TemporaryDirectory() as scratch:
        policy = pathlib.Path(scratch) / "policy.yaml"
        policy.write_text(f"engine: {{model: {json.dumps(str(model))}, device: {device}, batchInvariant: {json.dumps(batch_invariant)}}}\n")
        command = [binary, "proxy", "--config", policy, "--log-format", "json", *ports]
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            yield process, read_addresses(process)
        finally:
            stop(process)


def read_addresses(process):
    """Reads the log up to the line with the addresses."""
    lines = []
    for line in process.stderr:
        lines.append(line.strip())
        with contextlib.suppress(ValueError):
            if json.loads(line).get("msg") == "listening":
                return json.loads(line)
    raise Failed(" | ".join(lines[-5:]) or "the proxy ended without a line")


def stop(process):
    process.terminate()
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


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


def measure(binary, model, generator, batch_invariant, device="Cuda"):
    """Returns one row for each number of clients. With `batch_invariant`, a body must have the same answer in every batch; without, a library may multiply
    matrices, whose results depend on the batch."""
    rows = []
    with proxy(binary, model, device, batch_invariant) as (process, bound):
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
            wrong = sum(len(digests) > 1 for digests in found["answers"].values())
            if batch_invariant and wrong:
                raise Failed(f"{clients} clients: {wrong} bodies had several answers")
            after, times = read_metrics(bound["metrics"]), sorted(found["times"])
            spent = {name: after[name] - before[name] for name in METRICS}
            batches = max(spent["groupage_engine_batches_total"], 1)
            rows.append({
                "clients": clients, "calls_per_second": len(times) / SECONDS, "p50_ms": percentile(times, 0.5), "p99_ms": percentile(times, 0.99),
                "sequences_per_batch": spent["groupage_engine_sequences_total"] / batches,
                "padding": spent["groupage_engine_padding_tokens_total"] / max(spent["groupage_engine_tokens_total"], 1),
            })
    return {"batch_invariant": batch_invariant, "rows": rows}
