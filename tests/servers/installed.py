"""Says what requirements.txt asks for and this interpreter lacks, as one line of JSON. Standard library only."""

import json
import pathlib
import re
import sys
from importlib import metadata

asked = pathlib.Path(__file__).with_name("requirements.txt").read_text(encoding="utf-8")
missing = []
for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", asked, re.MULTILINE):
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        found = None
    if found != version:
        missing.append(f"{name} {version}" + (f" (found {found})" if found else ""))
print(json.dumps({"missing": missing}))
sys.exit(1 if missing else 0)
