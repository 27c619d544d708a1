"""Runs the command of a server on free loopback ports: `served.py [NAME=VALUE]... COMMAND [ARGUMENT]...`.

{port}, {grpc_port} and {spare_port} are replaced in all arguments. The command is looked up beside this interpreter. Prints one line of JSON with the ports.
"""

import os
import pathlib
import signal
import subprocess
import sys

import loopback

loopback.end_with_the_test()

ports, text = loopback.reserve("port", "grpc_port", "spare_port"), sys.argv[1:]
for name, port in ports.items():
    text = [part.replace("{" + name + "}", str(port)) for part in text]
environment = dict(os.environ)
while "=" in text[0]:
    name, value = text.pop(0).split("=", 1)
    environment[name] = value
beside = pathlib.Path(sys.executable).parent
environment["PATH"] = f"{beside}{os.pathsep}{environment.get('PATH', '')}"
# Modules of this folder are imported by servers, too.
environment["PYTHONDONTWRITEBYTECODE"] = "1"
environment.setdefault("PYTHONPATH", str(pathlib.Path(__file__).resolve().parent))
process = subprocess.Popen([beside / text[0], *text[1:]], env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr)
loopback.report(port=ports["port"], grpc_port=ports["grpc_port"])
signal.signal(signal.SIGTERM, lambda *_: loopback.end())
status = process.wait()
print(f"{text[0]} ended with {status}", file=sys.stderr)
loopback.end(1)
