//! Descriptions of the named scenarios, for `groupage simulate --list`.

/// Returns what a named scenario simulates, or `None` for one that was not described.
pub(super) fn describe_scenario(name: &str) -> Option<&'static str> {
    describe_reference(name).or_else(|| describe_further(name))
}

/// Describes the reference scenarios.
fn describe_reference(name: &str) -> Option<&'static str> {
    Some(match name {
        "low" => "100 calls/s at random, 3 % of the capacity in full batches",
        "mid" => "1000 calls/s at random, 31 % of the capacity",
        "high" => "2500 calls/s at random, 78 % of the capacity",
        "overload 1.5x" => "1.5 times the calls that the server can execute",
        "bursty MMPP" => "rates of 600 and 4800 calls/s that alternate at random",
        "on-off" => "bursts of 5000 calls/s, and pauses",
        "ramp" => "a rate that rises from 50 to 3600 calls/s and falls again every 8 s",
        "tight SLO" => "an SLO of 18 ms, which is less than a full batch takes",
        "closed 32" => "32 clients that send their next call at once",
        "closed 8 think" => "8 clients that send their next call about 4 ms after an answer",
        "fan-out 32" => "groups of 32 calls at nearly the same time",
        "cpu" => "a model on a CPU: batches gain little",
        "pow2 shapes" => "a server that pads batches to a power of two",
        "tile 8" => "a server that computes tiles of 8 items",
        "thrash" => "a server on which batches of more than 16 items cost more per item",
        "padded lens" => "texts of different lengths, padded to the longest of the batch",
        "padded over" => "the same, and more calls than the server can execute",
        "k=4 slots" => "a server that executes 4 batches at a time",
        "host 3ms" => "a server with 3 ms of work around each execution",
        "engine" => "a server that batches by itself",
        "reject >16" => "a server that refuses batches of more than 16 items",
        "stalls 1%" => "a server of which 1 % of the executions take 40 ms longer on average",
        "slows x2" => "a server that takes twice as long from half of the run on",
        "cold model" => "a server whose first executions take 25 times as long",
        _ => return None,
    })
}

/// Describes the scenarios beyond the reference scenarios.
fn describe_further(name: &str) -> Option<&'static str> {
    Some(match name {
        "8 keys, one hot" => "calls of 8 merge keys, half of them of one key",
        "64 tenants, one flooding" => "64 tenants, and one more that sends 4000 calls/s",
        "flood beside light" => "a tenant of 4000 calls/s beside one of 300 calls/s",
        "classes 8:1 at 1.3x" => "two priority classes, and 1.3 times the calls that the server can execute",
        "calls of 1-100 items" => "calls of different numbers of items",
        "deadlines 20-500 ms" => "deadlines of the callers, at 90 % of the capacity",
        "deadlines 20-500 ms over" => "the same at 130 % of the capacity",
        "3% cancels" => "callers that cancel 3 % of the calls",
        "closed 32 think" => "32 clients with a think time, and a server that takes 20 ms for any batch",
        "out of memory" => "a server that runs out of memory if the texts of a batch are too long",
        "ceiling lifted" => "a server that refuses batches of more than 16 items for the first quarter",
        "rate x10" => "a rate that rises from 250 to 2500 calls/s at half of the run",
        "overload, then mid" => "an overload for the first fifth, then a load below the capacity",
        "slots 4-1-4" => "a server that executes 4 batches at a time, then 1, then 4",
        "weight ceiling" => "a server that refuses batches of more than 1024 tokens",
        "access log" => "the calls of an example access log",
        _ => return None,
    })
}
