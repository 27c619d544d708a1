"""The page with the results of a run on a GPU."""

# Bars of the page. Cosine of embeddings of MiniLM to those of the CPU, and share of the measured ceiling with sequences of 512 tokens of bge-base.
COSINE_MIN, CEILING_SHARE_MIN = 0.999, 0.4


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


def bars(results):
    """Returns a row for each bar: what it is, the figure, and whether it was met."""
    verdict = lambda met: "met" if met else "**missed**"
    cosine = min(results["embeddings"]["cosines"])
    rows = [[f"cosine of MiniLM to the CPU, at least {COSINE_MIN}", f"{cosine:.6f}", verdict(cosine >= COSINE_MIN)]]
    name = f"bge-base, 512 tokens: share of the ceiling, at least {CEILING_SHARE_MIN:.0%}"
    if results["torch"]:
        best = max(row["teraflops"] for row in results["throughput"]["bge-base"]["throughput"] if row["length"] == 512)
        share = best / results["torch"]["ceiling_teraflops"]
        rows.append([name, f"{share:.0%}", verdict(share >= CEILING_SHARE_MIN)])
    else:
        rows.append([name, "–", "not measured: PyTorch, which measures the ceiling, is not installed"])
    found = results["sanitizer"]
    rows.append(["compute-sanitizer without a report", found or "–", "met" if found else "not measured: it is not installed"])
    return table(["bar", "figure", "result"], rows)


def render(results, build, date):
    torch, serving = results["torch"], results["serving"]
    worst = max(row["relative_error"] for row in results["kernels"]["kernels"])
    loads = [row["milliseconds"] for row in results["load"]["loads"]]
    changed = ", with local changes" if build["changed"] else ""
    device = "\n".join(f"- {line}" for line in results["device"]["device"])
    ceiling = f"{torch['ceiling_teraflops']:.0f} TFLOP/s, a product of 8192³ in bfloat16 by PyTorch {torch['torch']}" if torch else "not measured"
    served = table(
        ["clients", "calls/s", "p50 ms", "p99 ms", "sequences a batch", "padding"],
        [[str(row["clients"]), f"{row['calls_per_second']:,.0f}", f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}", f"{row['sequences_per_batch']:.1f}",
          f"{row['padding']:.0%}"] for row in serving["rows"]],
    )
    models = "\n\n".join(
        f"### {name}\n\n{throughput_table(found['throughput'], torch, name)}" for name, found in results["throughput"].items()
    )
    return f"""# Results on a GPU

Written by `just gpu` on {date.isoformat()}, from commit `{build['commit']}`{changed}. Ceiling: {ceiling}.

{device}

## Bars

{bars(results)}

## Kernels

All {len(results['kernels']['kernels'])} kernels agree with the interpreter; the largest relative error is {worst:.2e}. The driver compiled and loaded them in
{sum(loads) / 1000:.1f} s, the slowest in {max(loads):.0f} ms.

## Throughput

Medians, with the copies of inputs and results. The weights of bge-base are random. PyTorch executes the same shapes eagerly in bfloat16.

{models}

## HTTP over loopback

`groupage proxy --engine` with all-MiniLM-L6-v2 and calls of `/embed` with one text of 16 to 120 tokens, for {serving['seconds']} s each. The clients are one
Python process on the same machine, which may be the limit at many clients.

{served}
"""
