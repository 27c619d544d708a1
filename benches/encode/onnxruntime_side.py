"""The other side of the bench `encode`: MiniLM on onnxruntime, in f32 on one thread.

    onnxruntime_side.py MODEL_DIRECTORY

Reads lines `BATCH LENGTH RUNS` and answers each with the CPU seconds of one run, the mean of RUNS.
The graph has the fused operators of onnxruntime, as its own optimiser for transformers writes it.
"""

import sys
import time

import numpy
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

HIDDEN, LAYERS, HEADS = 384, 6, 12
CONTRIB = "com.microsoft"


class Graph:
    """Nodes and weights of a graph under construction."""

    def __init__(self):
        self.nodes = []
        self.weights = []

    def weight(self, name, array):
        self.weights.append(numpy_helper.from_array(numpy.ascontiguousarray(array), name))
        return name

    def node(self, operator, inputs, output, **attributes):
        self.nodes.append(helper.make_node(operator, inputs, output, **attributes))
        return output[0]


def build(tensors):
    """Returns the serialised graph from token ids to normalised embeddings."""
    graph = Graph()
    tables = ["word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight"]
    inputs = ["ids", "types"] + [
        graph.weight(name, tensors["embeddings." + name]) for name in tables + ["LayerNorm.weight", "LayerNorm.bias"]
    ]
    states = graph.node("EmbedLayerNormalization", inputs, ["states", "lengths"], domain=CONTRIB, epsilon=1e-12)
    for layer in range(LAYERS):
        states = add_layer(graph, tensors, states, f"encoder.layer.{layer}.")
    mean = graph.node("ReduceMean", [states, graph.weight("axis", numpy.array([1]))], ["mean"], keepdims=0)
    graph.node("LpNormalization", [mean], ["embedding"], axis=-1, p=2)
    ids = [helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", "length"]) for name in ("ids", "types")]
    embedding = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", HIDDEN])
    whole = helper.make_graph(graph.nodes, "minilm", ids, [embedding], graph.weights)
    versions = [helper.make_opsetid("", 18), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(whole, opset_imports=versions, ir_version=9).SerializeToString()


def add_layer(graph, tensors, states, prefix):
    """Appends a layer to the graph and returns the name of its output."""

    def weight(name):
        return graph.weight(prefix + name, tensors[prefix + name])

    def matrix(name):
        return graph.weight(prefix + name + ".weight", tensors[prefix + name + ".weight"].T)

    def normalize(product, residual, linear, norm, output):
        inputs = [product, residual, weight(norm + ".weight"), weight(norm + ".bias"), weight(linear + ".bias")]
        return graph.node("SkipLayerNormalization", inputs, [prefix + output], domain=CONTRIB, epsilon=1e-12)

    parts = [prefix + "attention.self." + name for name in ("query", "key", "value")]
    qkv = graph.weight(prefix + "qkv", numpy.concatenate([tensors[part + ".weight"].T for part in parts], axis=1))
    bias = graph.weight(prefix + "qkv.bias", numpy.concatenate([tensors[part + ".bias"] for part in parts]))
    mixed = graph.node("Attention", [states, qkv, bias], [prefix + "mixed"], domain=CONTRIB, num_heads=HEADS)
    linear, norm = "attention.output.dense", "attention.output.LayerNorm"
    product = graph.node("MatMul", [mixed, matrix(linear)], [prefix + "projected"])
    states = normalize(product, states, linear, norm, "attended")
    inner = graph.node("MatMul", [states, matrix("intermediate.dense")], [prefix + "up"])
    inner = graph.node("BiasGelu", [inner, weight("intermediate.dense.bias")], [prefix + "inner"], domain=CONTRIB)
    product = graph.node("MatMul", [inner, matrix("output.dense")], [prefix + "down"])
    return normalize(product, states, "output.dense", "output.LayerNorm", "output")


def main():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model = build(load_file(sys.argv[1] + "/model.safetensors"))
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    print("ready", onnxruntime.__version__, flush=True)
    for line in sys.stdin:
        batch, length, runs = map(int, line.split())
        ids = (numpy.arange(batch * length, dtype=numpy.int32) * 7919 % 20000 + 1000).reshape(batch, length)
        inputs = {"ids": ids, "types": ids * 0}
        start = time.process_time()
        for _ in range(runs):
            output = session.run(None, inputs)[0]
        seconds = (time.process_time() - start) / runs
        # The first numbers are compared with those of the other side.
        print(seconds, *output[0, :4], flush=True)


if __name__ == "__main__":
    main()
