"""A benchmark of real servers behind the proxy: `drive.py GROUPAGE KSERVE_VENV BENTO_VENV SECONDS`.

Each call is sent to the server directly, one at a time, and then repeatedly from many clients through the proxy. All responses must be equal byte for
byte. The counters of the proxy show whether it merged the calls or passed them through.
"""

import collections
import http.client
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
SERVERS = HERE.parent.parent / "tests" / "servers"
CLIENTS = 32
CALLS = 64
START_MAX = 120


def free_port():
    """Returns a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def call(connection, path, body):
    """Sends a JSON body and returns the status and the body of the response."""
    connection.request("POST", path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def wait_for(port, path, answers=(200,)):
    """Waits until a server answers with one of the statuses, for at most START_MAX seconds."""
    end = time.monotonic() + START_MAX
    while time.monotonic() < end:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", path)
            if connection.getresponse().status in answers:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"nothing answers {path} on port {port}")


class Kserve:
    """A KServe server with a random forest. It does not batch, so the proxy should merge calls."""

    name, path, policy, batches = "KServe", "/v1/models/digits:predict", "", False

    def __init__(self, venv):
        python = str(pathlib.Path(venv) / "bin" / "python")
        self.folder = tempfile.TemporaryDirectory()
        # The script exits when its standard input closes, which is held open until it has printed
        # its report.
        train = subprocess.Popen(
            [python, "-B", SERVERS / "train.py", self.folder.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        train.stdout.readline()
        train.stdin.close()
        train.wait()
        rows = (pathlib.Path(self.folder.name) / "rows.json").read_text(encoding="utf-8").splitlines()
        self.bodies = [f'{{"instances": [{row}]}}' for row in rows[:CALLS]]
        model = pathlib.Path(self.folder.name) / "model.joblib"
        self.process = subprocess.Popen(
            [python, "-B", SERVERS / "kserve_model.py", model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.port = json.loads(self.process.stdout.readline())["port"]
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        wait_for(self.port, "/v2/health/ready")


class Bento:
    """A service with its own batching. The proxy should pass calls through unless merging raises the throughput."""

    name, path, batches = "BentoML", "/predict", True
    policy = """
routes:
  - {path: /predict, protocol: Generic, idempotent: Always, generic: {items: /rows, results: "", itemClass: None}}
"""

    def __init__(self, venv):
        self.folder = tempfile.TemporaryDirectory()
        self.bodies = [json.dumps({"rows": [[0.1 * at, 0.25, 1.5, at]]}) for at in range(CALLS)]
        self.port = free_port()
        self.process = subprocess.Popen(
            [
                str(pathlib.Path(venv) / "bin" / "bentoml"),
                *("serve", "bento_service:Sums", "--host", "127.0.0.1", "--port", str(self.port)),
            ],
            cwd=HERE,
            env={"PATH": str(pathlib.Path(venv) / "bin") + ":/usr/bin:/bin", "HOME": self.folder.name,
                 "BENTOML_HOME": self.folder.name, "BENTOML_DO_NOT_TRACK": "True", "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(self.port, "/readyz")


class Proxy:
    """A Groupage proxy with the adaptive policy."""

    def __init__(self, groupage, server, admin=False, mode="Batch"):
        self.folder = tempfile.TemporaryDirectory()
        policy = pathlib.Path(self.folder.name) / "policy.yaml"
        policy.write_text(f"mode: {mode}\nscheduling: {{policy: Adaptive}}\n" + server.policy, encoding="utf-8")
        self.process = subprocess.Popen(
            [
                *(groupage, "proxy", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--admin", "127.0.0.1:0" if admin else "off"),
                *("--log-format", "json", "--upstream", f"http://127.0.0.1:{server.port}", "--config", str(policy)),
            ],
            stderr=subprocess.PIPE,
        )
        first = json.loads(self.process.stderr.readline())
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        port = lambda address: int(address.rsplit(":", 1)[1])
        self.port, self.metrics = port(first["listen"][0]), port(first["metrics"])
        self.admin = port(first["admin"]) if admin else None

    def counts(self):
        """Returns the calls passed through by reason, and the sum and count of the batch size histogram."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        passed, sizes = collections.Counter(), {}
        for line in text.splitlines():
            if match := re.match(r'groupage_calls_passed_total\{.*reason="(\w+)".*\} (\d+)', line):
                passed[match[1]] += int(match[2])
            if match := re.match(r"groupage_batch_items_(sum|count)(?:\{.*\})? ([\d.]+)", line):
                sizes[match[1]] = sizes.get(match[1], 0) + float(match[2])
        return passed, sizes


    def scheduler(self):
        """Returns the learned state of the scheduler, from the admin API."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin)
        connection.request("GET", "/api/scheduler")
        return json.loads(connection.getresponse().read())


def end(process):
    """Terminates a process, and kills it after 10 seconds."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run(port, server, seconds):
    """Runs closed-loop clients. Returns the distinct responses by body, and the rate of calls in each half of the time."""
    answers, counted, lock = collections.defaultdict(set), [0, 0], threading.Lock()
    begun = time.monotonic()

    def client(number):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        at = number
        while (passed := time.monotonic() - begun) < seconds:
            body = server.bodies[at % len(server.bodies)]
            answer = call(connection, server.path, body)
            with lock:
                answers[body].add(answer)
                counted[passed > seconds / 2] += 1
            at += 1

    clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    return answers, [count / (seconds / 2) for count in counted]


def main():
    """Runs the benchmark for each server and prints its criteria as met or missed."""
    groupage, kserve, bento = (str(pathlib.Path(path).absolute()) for path in sys.argv[1:4])
    seconds = sys.argv[4]
    met = missed = 0
    for kind, venv in ((Kserve, kserve), (Bento, bento)):
        print(f"{kind.name}:", flush=True)
        try:
            server = kind(venv)
        except (OSError, RuntimeError, ValueError) as error:
            print(f"  MISSED it does not start: {error}", flush=True)
            missed += 1
            continue
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        expected = {body: call(connection, server.path, body) for body in server.bodies}
        _, direct = run(server.port, server, float(seconds) / 4)
        proxy = Proxy(groupage, server)
        answers, rates = run(proxy.port, server, float(seconds))
        passed, sizes = proxy.counts()
        end(proxy.process)
        end(server.process)
        unequal = sum(len(seen - {expected[body]}) for body, seen in answers.items())
        calls = sum(rates) * float(seconds) / 2
        aside = passed["no_gain"]
        print(f"  directly {direct[1]:.0f} calls/s; through the proxy {rates[0]:.0f}, then {rates[1]:.0f}; {calls:.0f} calls,"
              f" {aside} passed for no_gain, batches of {sizes.get('sum', 0) / max(1, sizes.get('count', 0)):.1f} items", flush=True)
        stands = aside > calls / 4
        # Passing calls through is right only if merging is not better.
        right = stands or rates[1] >= direct[1] if server.batches else not stands
        for ok, what in (
            (unequal == 0, f"equal answers: {unequal} differ"),
            (right, "stands aside, or does better by merging" if server.batches else "merges and does not stand aside"),
        ):
            met, missed = met + ok, missed + (not ok)
            print(f"  {'met   ' if ok else 'MISSED'} {what}", flush=True)
    print(f"{met} met, {missed} missed")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
