#!/usr/bin/env python3
"""Compiles the CUDA kernels to PTX, and checks that the committed PTX is that of the sources.

    build.py            write ptx/*.ptx and ptx/manifest.json
    build.py --check    compare them with the sources, write nothing; exit 1 if they differ
    build.py --gates    compile to machine code for sm_80 and sm_90, print registers and spills, and
                        check them and the instructions; exit 1 if a limit is exceeded

Neither a GPU nor the CUDA toolkit is needed. NVRTC, NVIDIA's compiler as a library, is installed from
PyPI at a pinned version into a virtual environment under target/, so that the output is the same on
every machine. Exit status 3: it could not be installed.
"""

import argparse
import ctypes
import glob
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import venv

FOLDER = pathlib.Path(__file__).resolve().parent
OUTPUT = FOLDER / "ptx"
ENVIRONMENT = FOLDER.parents[3] / "target" / "kernels-venv"

# 12.4 writes PTX 8.4, which drivers from R550 on accept. A later compiler would exclude older drivers.
NVRTC = ("nvidia-cuda-nvrtc-cu12", "12.4.127")
DISASSEMBLER = ("nvidia-cuda-nvdisasm", "13.5.37")
INSTALL_FAILED = 3

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


class Compiler:
    """NVRTC, called through ctypes."""

    def __init__(self, packages):
        library = packages / "nvidia" / "cuda_nvrtc" / "lib"
        # The compiler opens its built-in functions by name; opened before, they are found.
        for builtins in sorted(library.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.nvrtc = ctypes.CDLL(str(library / "libnvrtc.so.12"))
        self.nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        self.headers = {path.name: path.read_bytes() for path in sorted(FOLDER.glob("*.cuh"))}

    def call(self, function, *arguments):
        status = getattr(self.nvrtc, function)(*arguments)
        if status != 0:
            raise RuntimeError(f"{function}: {self.nvrtc.nvrtcGetErrorString(status).decode()}")

    def read(self, program, what):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def compile(self, source, kernel, macros, architecture, options=()):
        """Returns the output for an architecture (PTX for compute_*, machine code for sm_*) and the log."""
        program = ctypes.c_void_p()
        names = (ctypes.c_char_p * len(self.headers))(*(name.encode() for name in self.headers))
        texts = (ctypes.c_char_p * len(self.headers))(*self.headers.values())
        text = (FOLDER / source).read_bytes()
        self.call(
            "nvrtcCreateProgram", ctypes.byref(program), text, source.encode(), len(self.headers), texts, names
        )
        macros = {"KERNEL_NAME": kernel, **macros}
        flags = [f"--gpu-architecture={architecture}", "--std=c++17", *options]
        flags += [f"--define-macro={name}={value}" for name, value in macros.items()]
        encoded = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        try:
            self.call("nvrtcCompileProgram", program, len(flags), encoded)
        except RuntimeError as error:
            raise RuntimeError(f"{source} ({kernel}): {error}\n{text_of(self.read(program, 'ProgramLog'))}") from None
        output = self.read(program, "PTX" if architecture.startswith("compute_") else "CUBIN")
        log = text_of(self.read(program, "ProgramLog"))
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return output, log


def text_of(buffer):
    return buffer.rstrip(b"\0").decode()


def add_package(package, version):
    """Installs a package into the virtual environment, and returns the error or nothing."""
    options = ["--quiet", "--disable-pip-version-check", "--retries", "1"]
    command = [ENVIRONMENT / "bin" / "python", "-m", "pip", "install", *options, f"{package}=={version}"]
    result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return result.stderr if result.returncode != 0 else None


def install():
    """Creates the virtual environment with the compiler, and returns its folder of packages."""
    try:
        if not (ENVIRONMENT / "bin" / "python").exists():
            venv.create(ENVIRONMENT, with_pip=True)
        error = add_package(*NVRTC)
    except (OSError, subprocess.CalledProcessError) as failure:
        error = f"no virtual environment: {failure}"
    if error is not None:
        print(f"cannot install {'=='.join(NVRTC)} from PyPI into {ENVIRONMENT.name}:\n{error}", file=sys.stderr)
        sys.exit(INSTALL_FAILED)
    (packages,) = (pathlib.Path(path) for path in glob.glob(str(ENVIRONMENT / "lib" / "python3*" / "site-packages")))
    return packages


def variants():
    """Yields file name, source, kernel, macros of every variant in every storage format."""
    for source, kernels in VARIANTS.items():
        for kernel, macros in kernels:
            for storage, storage_macros in STORAGES.items():
                yield f"{kernel}.{storage}.ptx", source, kernel, {**macros, **storage_macros}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


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


def outputs(compiler):
    """Returns the contents of all generated files by name."""
    files, kernels = {}, []
    for name, source, kernel, macros in variants():
        data, _ = compiler.compile(source, kernel, macros, ARCHITECTURE)
        ptx = text_of(data)
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
                "threads": int(re.search(r"\.maxntid (\d+)", ptx).group(1)),
                "dynamic_shared_bytes": macros.get("SHARED_BYTES", 0),
            }
        )
    sources = sorted([*FOLDER.glob("*.cu"), *FOLDER.glob("*.cuh")])
    manifest = {
        "compiler": "==".join(NVRTC),
        "architecture": ARCHITECTURE,
        "sources": {path.name: sha256(path.read_bytes()) for path in sources},
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


def disassemble(packages, cubin):
    tool = next(packages.glob("nvidia/**/bin/nvdisasm"))
    file = ENVIRONMENT / "kernel.cubin"
    file.write_bytes(cubin)
    return subprocess.run([tool, "-c", file], check=True, capture_output=True, text=True).stdout


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
    print(f"{'kernel':36} {'arch':6} {'registers':>9} {'spill stores':>12} {'spill loads':>11} {'bytes':>7}")
    failed = 0
    for name, source, kernel, macros in variants():
        for architecture in MACHINE_ARCHITECTURES:
            cubin, log = compiler.compile(source, kernel, macros, architecture, ["--ptxas-options=-v"])
            assembly = disassemble(packages, cubin) if disassembler else None
            (registers, stores, loads), found = violations(kernel, log, assembly)
            label = name.removesuffix(".ptx")
            print(f"{label:36} {architecture:6} {registers:9} {stores:12} {loads:11} {len(cubin):7}")
            for text in found:
                print(f"  FAILED: {text}")
            failed += len(found)
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
