"""A comparison of calls that are sent alone to a server with the same calls sent concurrently through the proxy.

A script of a client supplies the calls and how one is sent. `run` sends every call three times: alone to the server, together with the others to the
server, and together with the others through the proxy. It prints one line of JSON with the numbers, the times and the faults.
"""

import dataclasses
import json
import threading
import time
from importlib import metadata


@dataclasses.dataclass
class Call:
    """A call, with a text that occurs in no other call."""

    arguments: dict
    marker: str
    # The status that the server must return. A failing call is not repeated by its client.
    status: int = 200


@dataclasses.dataclass
class Answer:
    """An answer as its client decoded it. Values must be equal; `text` is searched for the markers of other calls."""

    status: int
    value: object
    text: str = ""


class Caller(threading.Thread):
    """A client on a thread of its own, which sends its calls one after the other."""

    def __init__(self, url, at, calls, client, gate=None):
        super().__init__(daemon=True)
        self.url, self.at, self.calls, self.client, self.gate = url, at, calls, client, gate
        self.answers, self.error = [], None

    def run(self):
        try:
            if self.gate:
                self.gate.wait(60)
            left = list(self.calls)
            while left:
                with self.client(self.url, self.at) as send:
                    # After an exception in the application, uvicorn closes the connection without
                    # announcing it, so the next call needs another one.
                    answer = None
                    while left and (answer is None or answer.status == 200):
                        answer = send(left.pop(0))
                        self.answers.append(answer)
        except Exception as error:
            self.error = f"caller {self.at}: {type(error).__name__}: {error}"[:400]


def together(url, callers, client):
    """Sends the calls of all callers at the same time. Returns the answers by caller, the faults and the duration."""
    gate = threading.Barrier(len(callers) + 1)
    threads = [Caller(url, at, calls, client, gate) for at, calls in enumerate(callers)]
    for thread in threads:
        thread.start()
    gate.wait(60)
    began = time.monotonic()
    for thread in threads:
        thread.join(120)
    seconds = time.monotonic() - began
    faults = [thread.error for thread in threads if thread.error]
    faults += [f"caller {thread.at} does not finish" for thread in threads if thread.is_alive()]
    return [thread.answers for thread in threads], faults, seconds


def unbatched(url, callers, client):
    """Sends all calls one after the other."""
    answers, faults = [], []
    for at, calls in enumerate(callers):
        caller = Caller(url, at, calls, client)
        caller.run()
        answers.append(caller.answers)
        faults += [caller.error] if caller.error else []
    return answers, faults


def leaks(call, answer, markers):
    """Returns the markers of other calls in an answer."""
    text = answer.text or repr(answer.value)
    return [marker for marker in markers if marker != call.marker and marker in text]


def judge(callers, expected, actual):
    """Returns the number of equal answers, and the faults."""
    markers = [call.marker for calls in callers for call in calls if call.marker]
    equal, faults = 0, []
    for calls, of_one, of_other in zip(callers, expected, actual):
        for call, mine, theirs in zip(calls, of_one, of_other):
            name = repr(call.arguments)[:120]
            if mine.status != call.status:
                faults.append(f"{name}: the server answers {mine.status}, expected {call.status}: {mine.value!r}"[:600])
            if (mine.status, mine.value) == (theirs.status, theirs.value):
                equal += 1
            else:
                faults.append(f"{name}: {mine.status} {mine.value!r:.300} and {theirs.status} {theirs.value!r:.300}")
            faults += [f"{name}: the answer contains {marker!r} of another call" for marker in leaks(call, theirs, markers)]
    return equal, faults


def run(direct, proxy, callers, client, packages):
    """Compares all calls and prints the report. `client(url, at)` is a context manager that returns a function that sends a call."""
    expected, faults = unbatched(direct, callers, client)
    report = {"client": ", ".join(f"{name} {metadata.version(name)}" for name in packages)}
    if not faults:
        _, faults, report["direct_seconds"] = together(direct, callers, client)
    actual = []
    if not faults:
        actual, faults, report["proxy_seconds"] = together(proxy, callers, client)
    equal, found = judge(callers, expected, actual) if not faults else (0, [])
    values = {repr((answer.status, answer.value)) for answers in expected for answer in answers}
    report |= {
        "calls": sum(len(calls) for calls in callers),
        "equal": equal,
        "refused": sum(call.status != 200 for calls in callers for call in calls),
        "unlike": len(values),
        "faults": faults + found,
    }
    for name in ("direct_seconds", "proxy_seconds"):
        report[name] = round(report.get(name, 0.0), 3)
    print(json.dumps(report), flush=True)
