#!/usr/bin/env python3
"""Compiles the CUDA kernels to PTX, and checks that the committed PTX is that of the sources.

    build.py            write ptx/*.ptx and ptx/manifest.json
    build.py --check    compare them with the sources, write nothing; exit 1 if they differ
    build.py --gates    compile to machine code for sm_80 and sm_90, write registers and spills to
                        registers.txt, and check them and the instructions; exit 1 if a limit is
                        exceeded

Neither a GPU nor the CUDA toolkit is needed: toolchain.py installs the compiler. Exit status 3: it
could not be installed.
"""

import argparse
import hashlib
import json
import re
import sys

# The folder of the sources stays free of generated files.
sys.dont_write_bytecode = True

from toolchain import DISASSEMBLER, FOLDER, NVRTC, Compiler, add_package, disassemble, install, text_of

OUTPUT = FOLDER / "ptx"
# The table of --gates. The line with the digest of the sources shows whether it is current.
REGISTERS = FOLDER / "registers.txt"

# The least compute capability with mma on bfloat16 and with cp.async. The driver compiles its PTX
# for every later one.
ARCHITECTURE = "compute_80"
MACHINE_ARCHITECTURES = ("sm_80", "sm_90")

# Storage formats of weights and activations, and the macros that select them.
STORAGES = {"bf16": {}, "f16": {"STORAGE_F16": 1}}

# Macros that the manifest states in another field.
UNLISTED_MACROS = ("SHARED_BYTES", "STORAGE_F16")


def gemm_variants():
    # Tile, tile of a warp, and the blocks for which registers are left on a multiprocessor.
    tiles = {128: (64, 32, 2), 64: (32, 32, 4)}
    for tile, (warp_m, warp_n, blocks) in tiles.items():
        for epilogue in ("BIAS", "BIAS_RESIDUAL", "BIAS_GELU_ERF", "BIAS_GELU_TANH"):
            yield (
                f"gemm_{epilogue.lower()}_{tile}",
                {
                    "EPILOGUE": epilogue,
                    "TILE_M": tile,
                    "TILE_N": tile,
                    "WARP_M": warp_m,
                    "WARP_N": warp_n,
                    "BLOCKS_PER_SM": blocks,
                    "SHARED_BYTES": 4 * 2 * tile * 32 * 2,
                },
            )


# Variants of each source: the name of the kernel and the macros that select it. SHARED_BYTES is the
# dynamic shared memory of a block.
VARIANTS = {
    "embedding.cu": [("embedding_layer_norm", {})],
    "residual_layer_norm.cu": [("residual_layer_norm", {})],
    "gemm.cu": list(gemm_variants()),
    "attention.cu": [
        (f"attention_{width}", {"HEAD_WIDTH": width, "SHARED_BYTES": (64 + 4 * 64) * width * 2})
        for width in (32, 64, 128)
    ],
    "pooling.cu": [(f"pool_{kind}", {"POOLING": f"POOL_{kind.upper()}"}) for kind in ("mean", "first", "last")],
    "head.cu": [
        ("head_dense_tanh", {"HEAD": "HEAD_DENSE_TANH", "INPUT_TYPE": "u16"}),
        ("head_logits", {"HEAD": "HEAD_LOGITS", "INPUT_TYPE": "float"}),
    ],
}

# Sizes that the kernels of a source can compute, by parameter. The host refuses others, since a kernel
# checks nothing. A test runs each kernel at its limits and beyond. A grid has at most 65,535 blocks in
# its second dimension.
ROW_WIDTH = {"multiple_of": 8, "max": 1024}
LIMITS = {
    "embedding.cu": {"width": ROW_WIDTH},
    "residual_layer_norm.cu": {"width": ROW_WIDTH},
    "gemm.cu": {"columns": {"multiple_of": 2}, "depth": {"multiple_of": 32}},
    "attention.cu": {"heads": {"max": 65535}},
    "pooling.cu": {"width": {"multiple_of": 8}, "out_width": ROW_WIDTH},
    "head.cu": {"depth": {"multiple_of": 8}},
}

# Registers a thread may use, by the first prefix of the kernel's name: little more than the compiler
# needs, so that a regression shows. Those of products and of attention_128 are what their blocks leave
# of 65,536 registers.
REGISTER_LIMITS = {
    "gemm_": 128,
    "attention_32": 112,
    "attention_64": 144,
    "attention_128": 255,
    "embedding": 64,
    "residual": 64,
    "": 40,
}
# Instructions of the machine code that a kernel must have, by the prefix of its name: products on
# tensor cores, asynchronous copies of 16 bytes, and loads of matrices.
REQUIRED_INSTRUCTIONS = {
    "gemm_": ("HMMA.16816.F32", "LDGSTS.E.BYPASS.128", "LDSM.16.M88.4"),
    "attention_": ("HMMA.16816.F32", "LDGSTS.E.BYPASS.128", "LDSM.16.M88.4", "LDSM.16.MT88.4"),
}


def variants():
    """Yields file name, source, kernel, macros of every variant in every storage format."""
    for source, kernels in VARIANTS.items():
        for kernel, macros in kernels:
            for storage, storage_macros in STORAGES.items():
                yield f"{kernel}.{storage}.ptx", source, kernel, {**macros, **storage_macros}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def source_hashes():
    sources = sorted([*FOLDER.glob("*.cu"), *FOLDER.glob("*.cuh")])
    return {path.name: sha256(path.read_bytes()) for path in sources}


def parameters(source, ptx):
    """Returns the names of the parameters from the source, and their types from the PTX."""
    text = (FOLDER / source).read_text()
    (signature,) = re.findall(r"KERNEL_NAME\((.*?)\)\s*\{", text, re.DOTALL)
    names = [re.search(r"(\w+)$", part.strip()).group(1) for part in signature.split(",")]
    types = re.findall(r"\.param \.(\w+) \w+_param_\d+", ptx)
    if len(names) != len(types):
        raise RuntimeError(f"{source}: {len(names)} parameters in the source, {len(types)} in the PTX")
    # All 64-bit parameters are pointers.
    return [{"name": name, "type": "pointer" if kind == "u64" else kind} for name, kind in zip(names, types)]


def check_rounding(name, ptx):
    """Refuses arithmetic without .rn, which the driver may fuse differently in each kernel (PTX ISA, "add")."""
    found = re.search(r"\b(?:add|sub|mul)(?:\.ftz)?\.f32", ptx)
    if found:
        raise RuntimeError(f"{name}: {found.group()} states no rounding; it needs --fmad=false or an intrinsic")


def outputs(compiler):
    """Returns the contents of all generated files by name."""
    files, kernels = {}, []
    for name, source, kernel, macros in variants():
        data, _ = compiler.compile(source, kernel, macros, ARCHITECTURE)
        ptx = text_of(data)
        check_rounding(name, ptx)
        files[name] = ptx
        kernels.append(
            {
                "name": kernel,
                "storage": name.split(".")[1],
                "file": name,
                "sha256": sha256(ptx.encode()),
                "source": source,
                "macros": {key: value for key, value in macros.items() if key not in UNLISTED_MACROS},
                "parameters": parameters(source, ptx),
                "limits": LIMITS[source],
                "threads": int(re.search(r"\.maxntid (\d+)", ptx).group(1)),
                "dynamic_shared_bytes": macros.get("SHARED_BYTES", 0),
            }
        )
    manifest = {
        "compiler": "==".join(NVRTC),
        "architecture": ARCHITECTURE,
        "sources": source_hashes(),
        "kernels": kernels,
    }
    files["manifest.json"] = json.dumps(manifest, indent=1) + "\n"
    return files


def write(compiler):
    OUTPUT.mkdir(exist_ok=True)
    files = outputs(compiler)
    for path in OUTPUT.iterdir():
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (OUTPUT / name).write_text(text)
    print(f"{len(files)} files, {sum(map(len, files.values()))} bytes")
    return 0


def check(compiler):
    files = outputs(compiler)
    committed = {path.name: path.read_text() for path in OUTPUT.iterdir()} if OUTPUT.exists() else {}
    stale = sorted(name for name in files.keys() | committed.keys() if files.get(name) != committed.get(name))
    for name in stale:
        print(f"{OUTPUT.name}/{name} is not what the sources compile to; run build.py and commit the result")
    if not stale:
        print(f"{len(files)} files match the sources")
    return 1 if stale else 0


def by_prefix(table, kernel, default):
    return next((value for prefix, value in table.items() if kernel.startswith(prefix)), default)


def violations(kernel, log, assembly):
    """Returns the registers, spill stores and spill loads of a kernel, and the limits that it exceeds."""
    registers = int(re.search(r"Used (\d+) registers", log).group(1))
    stores, loads = map(int, re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log).groups())
    found = []
    limit = by_prefix(REGISTER_LIMITS, kernel, 0)
    if registers > limit:
        found.append(f"{registers} registers, limit {limit}")
    if stores or loads:
        found.append(f"{stores} bytes of spill stores, {loads} of loads")
    if assembly is not None:
        required = by_prefix(REQUIRED_INSTRUCTIONS, kernel, ())
        found += [f"no {name}" for name in required if name not in assembly]
        found += [f"{name}: local memory" for name in ("LDL", "STL") if re.search(rf"\b{name}\b", assembly)]
    return (registers, stores, loads), found


def gates(compiler, packages):
    error = add_package(*DISASSEMBLER)
    disassembler = error is None
    if not disassembler:
        print(f"SKIPPED: instructions; cannot install {'=='.join(DISASSEMBLER)}:\n{error}", file=sys.stderr)
    hashes = "".join(f"{name} {value}\n" for name, value in source_hashes().items())
    table = [
        f"# Registers of a thread, and bytes of spills and of code, by {'=='.join(NVRTC)}: build.py --gates.",
        f"# sources {sha256(hashes.encode())}",
        f"{'kernel':36} {'arch':6} {'registers':>9} {'stores':>6} {'loads':>6} {'bytes':>7}",
    ]
    failed = 0
    for name, source, kernel, macros in variants():
        for architecture in MACHINE_ARCHITECTURES:
            cubin, log = compiler.compile(source, kernel, macros, architecture, ["--ptxas-options=-v"])
            assembly = disassemble(packages, cubin) if disassembler else None
            (registers, stores, loads), found = violations(kernel, log, assembly)
            label = name.removesuffix(".ptx")
            table.append(f"{label:36} {architecture:6} {registers:9} {stores:6} {loads:6} {len(cubin):7}")
            for text in found:
                print(f"{label} on {architecture}: {text}")
            failed += len(found)
    REGISTERS.write_text("\n".join(table) + "\n")
    print("\n".join(table))
    print(f"{failed} limits exceeded" if failed else "all limits hold")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--gates", action="store_true")
    arguments = parser.parse_args()
    packages = install()
    compiler = Compiler(packages)
    if arguments.gates:
        return gates(compiler, packages)
    return check(compiler) if arguments.check else write(compiler)


if __name__ == "__main__":
    sys.exit(main())
