"""NVRTC, NVIDIA's compiler as a library, and nvdisasm, from PyPI at pinned versions.

Both are installed into a virtual environment under target/, so that the output is the same on every
machine. Neither a GPU nor the CUDA toolkit is needed.
"""

import ctypes
import glob
import pathlib
import subprocess
import sys
import venv

FOLDER = pathlib.Path(__file__).resolve().parent
ENVIRONMENT = FOLDER.parents[3] / "target" / "kernels-venv"

# 12.4 writes PTX 8.4, which drivers from R550 on accept. A later compiler would exclude older drivers.
NVRTC = ("nvidia-cuda-nvrtc-cu12", "12.4.127")
DISASSEMBLER = ("nvidia-cuda-nvdisasm", "13.5.37")
INSTALL_FAILED = 3

# Without --fmad=false the compiler fuses products and sums at its discretion, and writes PTX that
# allows the compiler of the driver the same: kernels with one formula could differ in bits.
FLAGS = ("--std=c++17", "--fmad=false")


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
        flags = [f"--gpu-architecture={architecture}", *FLAGS, *options]
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


def disassemble(packages, cubin):
    tool = next(packages.glob("nvidia/**/bin/nvdisasm"))
    file = ENVIRONMENT / "kernel.cubin"
    file.write_bytes(cubin)
    return subprocess.run([tool, "-c", file], check=True, capture_output=True, text=True).stdout
