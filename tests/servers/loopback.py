"""Shared parts of the test servers: a loopback port selected by the kernel, and an exit together with the test."""

import json
import os
import socket
import sys
import threading


def listen():
    """Returns a socket bound to a free port, which is printed to standard output.

    Connections are refused until the server listens on the socket, so polling the port shows when the server is ready.
    """
    # The protocol is explicit: asyncio sets TCP_NODELAY only for IPPROTO_TCP, and without it
    # answers take 40 ms.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    print(json.dumps({"port": bound.getsockname()[1]}), flush=True)
    return bound


def end_with_the_test():
    """Exits the process when standard input closes. The test holds the other end, which closes however the test ends.

    Must be called before the imports that take seconds.
    """

    def wait():
        # Reads the descriptor directly: a reader of `sys.stdin` would hold its lock while the
        # interpreter shuts down.
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
