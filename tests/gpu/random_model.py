"""Writes a BERT encoder with random weights: `random_model.py MODEL OUT SHAPE`.

MODEL is the directory of all-MiniLM-L6-v2, whose tokenizer and files of sentence-transformers are copied. Weights are uniform in ±[2^-7, 2^-5], near the
deviation of 0.02 with which BERT is initialised, and normalisations are the identity. Speed depends on the shape only; results mean nothing.
"""

import json
import os
import pathlib
import shutil
import struct
import sys

# Hidden size, layers, heads, inner size.
SHAPES = {"bge-base": (768, 12, 12, 3072)}
VOCABULARY, POSITIONS, TYPES = 30522, 512, 2
# The high byte of a bfloat16: a sign, and the exponent of which the low byte has the last bit.
HIGH_BYTES = bytes(0xBC if byte % 2 else 0x3C for byte in range(256))


def random_values(count):
    values = bytearray(2 * count)
    values[0::2] = os.urandom(count)
    values[1::2] = os.urandom(count).translate(HIGH_BYTES)
    return values


def tensors(hidden, layers, inner):
    """Returns the name and the shape of each tensor."""
    embeddings = {"word": VOCABULARY, "position": POSITIONS, "token_type": TYPES}
    for name, rows in embeddings.items():
        yield f"embeddings.{name}_embeddings.weight", (rows, hidden)
    norms = ["embeddings.LayerNorm"]
    for layer in range(layers):
        prefix = f"encoder.layer.{layer}"
        square = [f"{prefix}.attention.self.{name}" for name in ("query", "key", "value")]
        linear = {name: (hidden, hidden) for name in [*square, f"{prefix}.attention.output.dense"]}
        linear[f"{prefix}.intermediate.dense"] = (inner, hidden)
        linear[f"{prefix}.output.dense"] = (hidden, inner)
        for name, shape in linear.items():
            yield f"{name}.weight", shape
            yield f"{name}.bias", shape[:1]
        norms += [f"{prefix}.attention.output.LayerNorm", f"{prefix}.output.LayerNorm"]
    for name in norms:
        yield f"{name}.weight", (hidden,)
        yield f"{name}.bias", (hidden,)


def contents(name, shape):
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    if "LayerNorm" in name:
        return (b"\x80\x3f" if name.endswith("weight") else b"\0\0") * count
    return bytes(2 * count) if name.endswith("bias") else random_values(count)


def main():
    source, out, shape = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    hidden, layers, heads, inner = SHAPES[shape]
    out.mkdir(parents=True)
    for name in ("tokenizer.json", "modules.json"):
        shutil.copy(source / name, out / name)
    (out / "1_Pooling").mkdir()
    pooling = json.loads((source / "1_Pooling/config.json").read_text())
    (out / "1_Pooling/config.json").write_text(json.dumps({**pooling, "word_embedding_dimension": hidden}))
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": hidden, "intermediate_size": inner,
        "layer_norm_eps": 1e-12, "max_position_embeddings": POSITIONS, "num_attention_heads": heads, "num_hidden_layers": layers,
        "pad_token_id": 0, "position_embedding_type": "absolute", "type_vocab_size": TYPES, "vocab_size": VOCABULARY,
    }
    (out / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, size in tensors(hidden, layers, inner):
        start, end = end, end + 2 * size[0] * (size[1] if len(size) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with open(out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, entry in header.items():
            file.write(contents(name, entry["shape"]))


main()
