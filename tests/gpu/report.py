"""The page with the results of a run on a GPU."""

import re

import serving

# Limits of the page. Cosine of embeddings of MiniLM to those of the CPU, and share of the measured ceiling with sequences of 512 tokens of bge-base.
COSINE_MIN, CEILING_SHARE_MIN = 0.999, 0.4
COLUMNS, LINES_MAX = 150, 40
# Folders of the machine, which no page of the tree may name.
FOLDERS = re.compile(r"/(?:work|root|home|Users)/")


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def throughput_table(rows, torch, name):
    """Returns the table of one model, beside PyTorch if it was measured."""
    ceiling = torch["ceiling_teraflops"] if torch else None
    theirs = {(row["length"], row["sequences"]): row for row in torch["models"][name]} if torch else {}
    head = ["tokens", "sequences", "ms", "tokens/s", "TFLOP/s", "of the ceiling", "PyTorch tokens/s", "ratio"]
    lines = []
    for row in rows:
        other = theirs.get((row["length"], row["sequences"]))
        lines.append([
            str(row["length"]), str(row["sequences"]), f"{row['milliseconds']:.3f}", f"{row['tokens_per_second']:,.0f}", f"{row['teraflops']:.1f}",
            f"{row['teraflops'] / ceiling:.0%}" if ceiling else "–",
            f"{other['tokens_per_second']:,.0f}" if other else "–",
            f"{row['tokens_per_second'] / other['tokens_per_second']:.2f}" if other else "–",
        ])
    return table(head, lines)


def verdict(met):
    return "met" if met else "**missed**"


def cosine_row(name, stage, results, failed):
    """Returns the row of the least cosine of a stage, also of one that failed by it."""
    findings = results.get(stage) or failed[stage].findings
    cosines = findings.get("cosines") or []
    if stage.startswith("library") and cosines and "products by" not in findings.get("kernels", ""):
        return [name, "–", "not measured: no library is installed, or the check at the start rejected it"]
    if not cosines:
        return [name, "–", "**failed**"]
    if None in cosines:
        return [name, "not a number", verdict(False)]
    return [name, f"{min(cosines):.6f}", verdict(min(cosines) >= COSINE_MIN)]


def ceiling_row(results, failed):
    name = f"bge-base, 512 tokens: share of the ceiling, at least {CEILING_SHARE_MIN:.0%}"
    if "throughput" in failed or "torch" in failed:
        return [name, "–", "**failed**"]
    if not results["torch"]:
        return [name, "–", "not measured: PyTorch, which measures the ceiling, is not installed"]
    best = max(row["teraflops"] for row in results["throughput"]["bge-base"]["throughput"] if row["length"] == 512)
    share = best / results["torch"]["ceiling_teraflops"]
    return [name, f"{share:.0%}", verdict(share >= CEILING_SHARE_MIN)]


def sanitizer_row(results, failed):
    name = "compute-sanitizer without a report"
    if "sanitizer" in failed:
        return [name, "–", "**failed**"]
    found = results["sanitizer"]
    return [name, found or "–", "met" if found else "not measured: it is not installed"]


def limit_rows(results, failed):
    """Returns a row for each limit: what it is, the figure, and whether it was met."""
    rows = [
        cosine_row(f"cosine of MiniLM to the CPU, at least {COSINE_MIN}", "embeddings", results, failed),
        cosine_row(f"the same with cuBLASLt, at least {COSINE_MIN}", "library", results, failed),
        cosine_row(f"cosine of MiniLM with weights in F16, at least {COSINE_MIN}", "embeddings-f16", results, failed),
        cosine_row(f"the same with cuBLASLt and weights in F16, at least {COSINE_MIN}", "library-f16", results, failed),
        ceiling_row(results, failed),
        sanitizer_row(results, failed),
    ]
    return table(["limit", "figure", "result"], rows)


def failures(failed):
    """Returns a section with the reason of each failed stage; empty if there is none."""
    if not failed:
        return ""
    def excerpt(text):
        lines = [FOLDERS.sub("/…/", line)[:COLUMNS] for line in text.replace("```", "'''").splitlines()]
        return "\n".join(lines[-LINES_MAX:])
    stages = "\n\n".join(f"### {name}\n\n```text\n{excerpt(str(reason))}\n```" for name, reason in failed.items())
    return f"## Failed stages\n\n**Failed: {', '.join(failed)}.** The other sections have what was measured nevertheless.\n\n{stages}\n\n"


def kernels(results):
    sentences = []
    if "kernels" in results:
        rows = results["kernels"]["kernels"]
        error = lambda storage: max(row["relative_error"] for row in rows if row["storage"] == storage)
        storages = sorted({row["storage"] for row in rows})
        errors = " and ".join(f"{error(storage):.2e} in {storage}" for storage in storages)
        names = {row["kernel"] for row in rows}
        sentences.append(f"All {len(names)} kernels agree with the interpreter in {' and '.join(storages)}; the largest relative error is {errors}.")
    if "load" in results:
        loads = [row["milliseconds"] for row in results["load"]["loads"]]
        sentences.append(f"The driver compiled and loaded them in\n{sum(loads) / 1000:.1f} s, the slowest in {max(loads):.0f} ms.")
    return " ".join(sentences) or "Not measured."


def throughput(results):
    models = results.get("throughput", {}).items()
    return "\n\n".join(f"### {name}\n\n{throughput_table(found['throughput'], results.get('torch'), name)}" for name, found in models) or "Not measured."


def served(results):
    head = ["`engine.batchInvariant`", "clients", "calls/s", "p50 ms", "p99 ms", "sequences a batch", "padding"]
    rows = [
        [str(found["batch_invariant"]).lower(), str(row["clients"]), f"{row['calls_per_second']:,.0f}", f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}",
         f"{row['sequences_per_batch']:.1f}", f"{row['padding']:.0%}"]
        for found in (results.get("serving"), results.get("serving-default")) if found for row in found["rows"]
    ]
    notes = []
    if "serving" in results:
        notes.append("With `true`, every body had one answer in all batches.")
    if "serving-default" in results:
        notes.append("With `false`, the default, cuBLASLt multiplies matrices if it is installed, and answers are not compared.")
    return "\n\n".join([table(head, rows), " ".join(notes)]) if rows else "Not measured."


def render(results, failed, build, date):
    """Returns the page. `failed` has the error of each failed stage, and `results` those of the others."""
    torch = results.get("torch")
    changed = ", with local changes" if build["changed"] else ""
    device = "\n".join(f"- {line}" for line in results["device"]["device"])
    ceiling = f"{torch['ceiling_teraflops']:.0f} TFLOP/s, a product of 8192³ in bfloat16 by PyTorch {torch['torch']}" if torch else "not measured"
    return f"""# Results on a GPU

Written by `just gpu` on {date.isoformat()}, from commit `{build['commit']}`{changed}. Ceiling: {ceiling}.

{device}

{failures(failed)}## Limits

{limit_rows(results, failed)}

## Kernels

{kernels(results)}

## Throughput

Medians, with the copies of inputs and results. The weights of bge-base are random. PyTorch executes the same shapes eagerly in bfloat16.

{throughput(results)}

## HTTP over loopback

`groupage proxy` with all-MiniLM-L6-v2 and calls of `/embed` with one text of 16 to 120 tokens, for {serving.SECONDS} s each. The clients are one Python process on the
same machine, which may be the limit at many clients.

{served(results)}
"""
