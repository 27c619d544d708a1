"""Prints the packages of requirements.txt that are missing from this interpreter, as one line of JSON. Uses the standard library only."""

import json
import pathlib
import re
import sys
from importlib import metadata

required = pathlib.Path(__file__).with_name("requirements.txt").read_text(encoding="utf-8")
missing = []
for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", required, re.MULTILINE):
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        found = None
    if found != version:
        missing.append(f"{name} {version}" + (f" (found {found})" if found else ""))
print(json.dumps({"missing": missing}))
sys.exit(1 if missing else 0)
