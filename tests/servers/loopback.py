"""What the servers of these tests share: a loopback port that the kernel picks, and an end with the test."""

import json
import os
import socket
import sys
import threading


def listen():
    """A socket bound to a port that is free by construction, announced on standard output.

    Connects are refused until the server listens on it, so polling the port tells when it is ready.
    """
    # The protocol is explicit: asyncio sets TCP_NODELAY only for IPPROTO_TCP, and without it
    # answers take 40 ms.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    print(json.dumps({"port": bound.getsockname()[1]}), flush=True)
    return bound


def end_with_the_test():
    """The test holds the other end of standard input; however the test ends, that closes.

    Called before the imports that take seconds.
    """

    def wait():
        # Reads the descriptor directly: a reader of `sys.stdin` would hold its lock while the
        # interpreter shuts down.
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
