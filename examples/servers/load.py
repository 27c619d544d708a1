#!/usr/bin/env python3
"""Sends the same load to a model server and through Groupage, and compares: `load.py SERVER_URL PROXY_URL NAME [OPTION]...`.

NAME is a folder beside this file. Needs Python 3.9 and nothing else. The exit status is 1 if a call failed or an answer differs.
With `--turns N`, the load is sent N times to each of the two, in turns, and the rates are those of all turns together.
"""

import argparse
import http.client
import itertools
import json
import sys
import threading
import time
import urllib.parse


def row(at, columns):
    """Returns a row of numbers that differs from all others."""
    return [round((7 * at + 3 * column) % 160 / 10 + at / 1000, 3) for column in range(columns)]


def rows_v1(at, options):
    return f"/v1/models/{options.model}:predict", {"instances": [row(at, options.columns)]}


def rows_v2(at, options):
    tensor = {"name": "input-0", "shape": [1, options.columns], "datatype": options.datatype, "data": row(at, options.columns)}
    return f"/v2/models/{options.model}/infer", {"id": f"call-{at}", "inputs": [tensor]}


def rows_mlflow(at, options):
    return "/invocations", {"inputs": [row(at, options.columns)]}


def texts(at, options):
    return "/score", {"texts": [f"parcel number {at}"]}


def rows_bento(at, options):
    return "/predict", {"rows": [row(at, options.columns)]}


def embedding(at, options):
    return "/v1/embeddings", {"model": options.model, "input": f"parcel number {at}"}


def generation(at, options):
    call = {"model": options.model, "max_tokens": 8, "temperature": 0}
    if at % 2:
        return "/v1/completions", call | {"prompt": f"Parcel number {at}"}
    return "/v1/chat/completions", call | {"messages": [{"role": "user", "content": f"Parcel number {at}"}]}


CALLS = {
    "kserve-sklearn": rows_v1,
    "mlserver": rows_v2,
    "mlflow": rows_mlflow,
    "fastapi": texts,
    "bentoml": rows_bento,
    "infinity": embedding,
    "litellm": embedding,
    "vllm": generation,
}
# Members of an answer that are new in each one, or shared out by length.
OWN = {"id", "created", "usage", "system_fingerprint", "service_tier"}


def send(url, calls, count, headers):
    """Sends the calls from `count` connections at once. Returns the answers and the latencies by call, and the duration."""
    address, answers, times = urllib.parse.urlsplit(url), {}, {}
    left, lock = iter(sorted(calls)), threading.Lock()

    def caller():
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
        while True:
            with lock:
                at = next(left, None)
            if at is None:
                return connection.close()
            path, body = calls[at]
            began = time.monotonic()
            try:
                connection.request("POST", path, json.dumps(body), headers)
                answer = connection.getresponse()
                answers[at] = (answer.status, answer.read())
            except (OSError, http.client.HTTPException) as error:
                answers[at] = (0, str(error).encode())
                connection.close()
            times[at] = time.monotonic() - began

    began = time.monotonic()
    threads = [threading.Thread(target=caller) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers, times, time.monotonic() - began


def compared(answer):
    """Returns the status of an answer, and its body without the members that are new in each one."""
    status, body = answer
    try:
        document = json.loads(body)
    except ValueError:
        return status, body
    # Only the API of OpenAI has ids of the server; those of tensors are the ids of their calls.
    if isinstance(document, dict) and "object" in document:
        document = {name: value for name, value in document.items() if name not in OWN}
    return status, document


def line(name, times, seconds):
    """Formats the rate and the latencies of a load."""
    ordered = sorted(times)
    at = lambda share: 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]
    return f"{name:8} {len(ordered) / seconds:8.1f} calls/s   p50 {at(0.5):7.1f} ms   p99 {at(0.99):7.1f} ms"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", help="URL of the server")
    parser.add_argument("proxy", help="URL of the proxy in front of it")
    parser.add_argument("name", choices=sorted(CALLS))
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--turns", type=int, default=1, help="number of times that the load is sent to each of the two")
    parser.add_argument("--model", default="model", help="name of the model")
    parser.add_argument("--columns", type=int, default=4, help="length of a row, for models of tables")
    parser.add_argument("--datatype", default="FP32", help="datatype of a tensor")
    parser.add_argument("--key", help="API key")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args()
    headers = {"content-type": "application/json"}
    if options.key:
        headers["authorization"] = f"Bearer {options.key}"
    calls = {at: CALLS[options.name](at, options) for at in range(options.calls)}
    # The first calls to a server are slower for reasons that do not depend on the load.
    send(options.server, dict(itertools.islice(calls.items(), options.callers)), options.callers, headers)
    faults, unequal, failed = [], 0, 0
    times, seconds = {"direct": [], "proxy": []}, {"direct": [], "proxy": []}
    for turn in range(options.turns):
        answers = {}
        # Each goes first in turn, so that a machine that slows down does not favour one of them.
        for name, url in [("direct", options.server), ("proxy", options.proxy)][:: 1 if turn % 2 == 0 else -1]:
            answers[name], latencies, duration = send(url, calls, options.callers, headers)
            times[name].extend(latencies.values())
            seconds[name].append(duration)
        for at in calls:
            direct, proxied = answers["direct"][at], answers["proxy"][at]
            is_unequal, is_failed = compared(direct) != compared(proxied), direct[0] != 200 or proxied[0] != 200
            unequal, failed = unequal + is_unequal, failed + is_failed
            if is_unequal or is_failed:
                faults.append(f"call {at}: {direct[0]} {direct[1][:200]!r}, {proxied[0]} {proxied[1][:200]!r}")
    count = len(calls) * options.turns
    if options.json:
        report = {"client": "load.py", "calls": count, "equal": count - unequal, "refused": 0, "faults": faults[:20]}
        for name in seconds:
            report |= {f"{name}_seconds": round(sum(seconds[name]), 3), f"{name}_turns": [round(one, 3) for one in seconds[name]]}
        print(json.dumps(report), flush=True)
    else:
        print(line("directly", times["direct"], sum(seconds["direct"])))
        print(line("groupage", times["proxy"], sum(seconds["proxy"])))
        print(f"{count - unequal} of {count} answers equal, {failed} calls failed")
        print("\n".join(faults[:3]), end="\n" if faults else "")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
