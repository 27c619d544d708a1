"""Shared parts of the test servers: a loopback port selected by the kernel, and an exit together with the test."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import sys
import threading

# Sockets of reserved ports, which stay open until the process ends.
held = []


def bind():
    """Returns a socket bound to a free port of the loopback interface."""
    # The protocol is explicit: asyncio sets TCP_NODELAY only for IPPROTO_TCP, and without it
    # answers take 40 ms.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    return bound


def report(**values):
    """Prints one line of JSON, which the test reads."""
    print(json.dumps(values), flush=True)


def listen(**more):
    """Returns a socket bound to a free port, which is printed to standard output.

    Connections are refused until the server listens on the socket, so polling the port shows when the server is ready.
    """
    bound = bind()
    report(port=bound.getsockname()[1], **more)
    return bound


def reserve(*names):
    """Returns a free port for each name. The kernel gives them to nothing else, and servers that reuse addresses can listen on them."""
    ports = {}
    for name in names:
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.bind(("127.0.0.1", 0))
        # Set after the port was chosen: the kernel would choose a port that others reuse, too.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.append(bound)
        ports[name] = bound.getsockname()[1]
    return ports


def descendants(root):
    """Returns the ids of the processes that a process started, directly or not. Some of them lead a session of their own."""
    children = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            # The process ended.
            continue
        children.setdefault(parent, []).append(int(folder.name))
    found = [root]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def end(status=0):
    """Exits this process, and with it all processes that it started."""
    for one in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    os._exit(status)


def end_with_the_test():
    """Exits the process when standard input closes. The test holds the other end, which closes however the test ends.

    Must be called before the imports that take seconds.
    """

    def wait():
        # Reads the descriptor directly: a reader of `sys.stdin` would hold its lock while the
        # interpreter shuts down.
        while os.read(0, 4096):
            pass
        end()

    threading.Thread(target=wait, daemon=True).start()


def wait():
    """Blocks the main thread of a server that runs in others."""
    threading.Event().wait()
