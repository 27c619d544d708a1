"""The application of `webapp.py`, which exits if its command line contains a loopback address."""

import sys

from webapp import app

__all__ = ["app"]

if "127.0.0.1" in sys.argv:
    sys.exit("it listens on 0.0.0.0 alone")
