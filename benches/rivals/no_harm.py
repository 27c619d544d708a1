"""A comparison of direct and proxied load on real servers: `no_harm.py GROUPAGE SERVERS_VENV LITELLM_VENV BENTO_VENV SECONDS [PART-OF-A-NAME]`.

Each turn measures the same callers three times: directly, through the proxy in mode Passthrough, and through a proxy that starts without
learned state under the default policy. Each row is printed with the rate, the median and the 99th percentile of the three, and is checked
against its criteria: a minimum share of the direct rate, a 99th percentile of at most 1.1 times the direct one plus 1 ms, and responses
equal to those of direct calls. If the processor is the bottleneck, any proxy reduces the rate; mode Passthrough shows by how much. Prints
`N met, N missed`, and exits with an error if a criterion is missed.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import threading

import drive

HERE = pathlib.Path(__file__).resolve().parent
TURNS = 3
SHARE_MIN, SHORT_SHARE_MIN = 0.96, 0.93
TEXTS = [f"parcel number {at} to be weighed" for at in range(64)]
EMBEDDINGS = [json.dumps({"model": "m", "input": text}) for text in TEXTS]


class Uvicorn:
    """A server process of `async_service.py`."""

    path, policy, bodies = "/v1/embeddings", "", EMBEDDINGS

    def __init__(self, kind, venv):
        self.process = subprocess.Popen(
            [pathlib.Path(venv) / "bin" / "python", "-B", HERE / "async_service.py", kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        self.port = json.loads(self.process.stdout.readline())["port"]
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        drive.wait_for(self.port, "/", answers=(200, 404))


class Litellm:
    """A LiteLLM gateway in front of the FastAPI service."""

    path, policy, bodies = "/v1/embeddings", "", EMBEDDINGS

    def __init__(self, litellm, servers):
        self.api = Uvicorn("api", servers)
        self.folder = tempfile.TemporaryDirectory()
        config = pathlib.Path(self.folder.name) / "config.yaml"
        config.write_text(
            "model_list:\n  - model_name: m\n    litellm_params:\n      model: openai/m\n      api_key: none\n"
            f"      api_base: http://127.0.0.1:{self.api.port}/v1\n",
            encoding="utf-8",
        )
        self.port = drive.free_port()
        venv = pathlib.Path(litellm) / "bin"
        self.process = subprocess.Popen(
            [venv / "litellm", "--config", config, "--host", "127.0.0.1", "--port", str(self.port), "--telemetry", "False"],
            cwd=self.folder.name,
            env={"PATH": f"{venv}:/usr/bin:/bin", "HOME": self.folder.name, "PYTHONDONTWRITEBYTECODE": "1",
                 "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                 # Accepts any API key of a client; the server is on loopback and runs for minutes
                 # only.
                 "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        drive.wait_for(self.port, "/health/liveliness")


def load(port, server, seconds, callers, keys):
    """Runs `load.py` and returns its measurements."""
    done = subprocess.run(
        [sys.executable, "-B", HERE / "load.py", str(port), server.path, str(seconds), str(callers), keys],
        input="\n".join(server.bodies), capture_output=True, text=True, check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def joined(parts):
    """Returns the calls, latency percentiles and failures of several measurements together."""
    times = sorted(time for part in parts for time in part["times"])
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))] if times else float("inf")
    failed = sum(count for part in parts for status, count in part["statuses"].items() if status != "200")
    return {"calls": len(times), "p50": at(0.5), "p99": at(0.99), "failed": failed}


def unequal(direct, proxied):
    """Returns the number of proxied responses that no direct call with the same body received."""
    expected = {}
    for part in direct:
        for body, answers in part["answers"].items():
            expected.setdefault(body, set()).update(answers)
    return sum(len(set(answers) - expected.get(body, set(answers))) for part in proxied for body, answers in part["answers"].items())


def measure(groupage, name, server, row, seconds):
    """Measures one row, prints it, and returns the numbers of its criteria that are met and missed."""
    callers, keys, share_min = row
    ways, concurrency = {"direct": [], "pass": [], "proxied": []}, None
    # The first calls to a server are slower for reasons that do not depend on the proxy.
    load(server.port, server, 2, callers, keys)
    for turn in range(TURNS):
        # Each path goes first in turn, so that a machine that slows down does not favour one of
        # them.
        for at in range(len(ways)):
            way = list(ways)[(at + turn) % len(ways)]
            if way == "direct":
                ways[way].append(load(server.port, server, seconds, callers, keys))
                continue
            proxy = drive.Proxy(groupage, server, admin=True, mode="Passthrough" if way == "pass" else "Batch")
            ways[way].append(load(proxy.port, server, seconds, callers, keys))
            if way == "proxied":
                concurrency = proxy.scheduler().get("concurrency")
            drive.end(proxy.process)
    direct, passed, proxied = ways.values()
    own, theirs = joined(proxied), joined(direct)
    share, p99 = own["calls"] / max(1, theirs["calls"]), theirs["p99"] * 1.1 + 1
    print(f"{name}, {callers} x {keys} key{'s' if keys == 'own' else ''}")
    for way, seen in (("direct ", theirs), ("pass   ", joined(passed)), ("proxied", own)):
        rate = seen["calls"] / (seconds * TURNS)
        print(f"  {way} {rate:8.1f}/s p50 {seen['p50']:7.1f} p99 {seen['p99']:7.1f}  failed {seen['failed']}")
    limits = [
        (share >= share_min, f"rate {share:.3f} of direct, at least {share_min}"),
        (own["p99"] <= p99, f"p99 {own['p99']:.1f} ms, at most {p99:.1f}"),
        (own["failed"] <= theirs["failed"], f"{own['failed']} calls failed, directly {theirs['failed']}"),
        (unequal(direct, proxied) == 0, "answers as directly"),
    ]
    print(f"  share {share:.3f}, of pass {own['calls'] / max(1, joined(passed)['calls']):.3f}; by turns " + " ".join(
        f"{len(one['times']) / max(1, len(other['times'])):.2f}" for one, other in zip(proxied, direct)))
    missed = [line for met, line in limits if not met]
    for line in missed:
        print(f"  MISSED {line}")
    if missed:
        print(f"  concurrency: {json.dumps(concurrency)}")
    sys.stdout.flush()
    return len(limits) - len(missed), len(missed)


def main():
    """Measures all rows and prints the total of criteria met and missed."""
    groupage, servers, litellm, bento, seconds, *parts = sys.argv[1:]
    groupage = str(pathlib.Path(groupage).absolute())
    fastapi = lambda kind: lambda: Uvicorn(kind, servers)
    kinds = [
        ("FastAPI, async, 50 ms", fastapi("api"), [(8, "own", SHARE_MIN), (32, "own", SHARE_MIN), (100, "own", SHARE_MIN), (32, "one", SHARE_MIN)]),
        ("one text a call, 10 ms", fastapi("one"), [(16, "one", SHARE_MIN), (16, "own", SHARE_MIN)]),
        ("ASGI echo", fastapi("echo"), [(8, "one", SHORT_SHARE_MIN), (8, "own", SHORT_SHARE_MIN)]),
        ("LiteLLM before FastAPI", lambda: Litellm(litellm, servers), [(32, "own", SHARE_MIN), (32, "one", SHARE_MIN)]),
        ("KServe", lambda: drive.Kserve(servers), [(32, "one", SHARE_MIN), (32, "own", SHARE_MIN)]),
        ("BentoML", lambda: drive.Bento(bento), [(32, "one", SHARE_MIN), (32, "own", SHARE_MIN)]),
    ]
    met = missed = 0
    for name, start, rows in kinds:
        if parts and not any(part in name for part in parts):
            continue
        try:
            server = start()
        except (OSError, RuntimeError, ValueError) as error:
            print(f"{name}\n  MISSED it does not start: {error}", flush=True)
            missed += 1
            continue
        for row in rows:
            more = measure(groupage, name, server, row, float(seconds))
            met, missed = met + more[0], missed + more[1]
        drive.end(server.process)
        if hasattr(server, "api"):
            drive.end(server.api.process)
    print(f"{met} met, {missed} missed")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
