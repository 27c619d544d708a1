"""llama.cpp's own server with a model of random weights: `llama_server.py FOLDER`. The package `xllamacpp` contains the server."""

import pathlib
import sys

import loopback

loopback.end_with_the_test()

import gguf
import numpy
import xllamacpp

CONTEXT, LAYERS, WIDTH, HEADS, INNER = 2048, 2, 64, 4, 128
# A token for each byte, after the three that mark unknown text, the start and the end.
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES]
SLOTS = 4


def write_model(path):
    """Writes a model in the architecture of Llama, with a tokenizer of single bytes."""
    writer, random = gguf.GGUFWriter(path, "llama"), numpy.random.default_rng(7)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    control = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer.add_token_types(control + [gguf.TokenType.BYTE] * len(BYTES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)

    def tensor(name, *shape):
        values = numpy.ones(shape) if name.endswith("norm.weight") else random.normal(0, 0.2, shape)
        if name == "output.weight":
            # The model writes letters only, and never ends.
            values[[at for at, token in enumerate(TOKENS) if token not in BYTES[97:123]]] = 0
        writer.add_tensor(name, values.astype(numpy.float32))

    tensor("token_embd.weight", len(TOKENS), WIDTH)
    tensor("output_norm.weight", WIDTH)
    tensor("output.weight", len(TOKENS), WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            tensor(f"blk.{layer}.{name}.weight", WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{layer}.{name}.weight", WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            tensor(f"blk.{layer}.{name}.weight", INNER, WIDTH)
        tensor(f"blk.{layer}.ffn_down.weight", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


path = pathlib.Path(sys.argv[1]) / "tiny.gguf"
write_model(path)
settings = xllamacpp.CommonParams()
settings.model.path = str(path)
settings.n_ctx, settings.n_parallel, settings.warmup = CONTEXT, SLOTS, False
settings.cpuparams.n_threads = 1
settings.hostnames, settings.port, settings.reuse_port = ["127.0.0.1"], loopback.reserve("port")["port"], True
server = xllamacpp.Server(settings)
loopback.report(port=settings.port)
loopback.wait()
