"""Copies a model with its weights in F16: `half_model.py MODEL OUT`. Those of MODEL are in F32, in one file. A weight beyond the range of F16 is an error."""

import array
import json
import pathlib
import shutil
import struct
import sys

# Numbers that are converted at a time.
CHUNK = 1 << 20


def to_half(data):
    values = array.array("f", data)
    return struct.pack(f"<{len(values)}e", *values)


def main():
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    weights = "model.safetensors"
    shutil.copytree(source, out, ignore=shutil.ignore_patterns(weights))
    with open(source / weights, "rb") as file, open(out / weights, "wb") as half:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        tensors = sorted(((name, entry) for name, entry in header.items() if entry["dtype"] == "F32"), key=lambda tensor: tensor[1]["data_offsets"])
        halved, end = {}, 0
        for name, entry in tensors:
            first, last = entry["data_offsets"]
            start, end = end, end + (last - first) // 2
            halved[name] = {"dtype": "F16", "shape": entry["shape"], "data_offsets": [start, end]}
        text = json.dumps(halved).encode()
        half.write(struct.pack("<Q", len(text)) + text)
        for _, entry in tensors:
            first, last = entry["data_offsets"]
            file.seek(8 + length + first)
            for at in range(first, last, 4 * CHUNK):
                half.write(to_half(file.read(min(4 * CHUNK, last - at))))


main()
