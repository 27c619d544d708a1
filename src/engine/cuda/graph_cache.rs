//! A cache of graphs by the shape of a batch, with the least recently used one evicted.
//!
//! A CUDA graph launches all kernels of an encoder with one call, which takes less time than a
//! launch for each kernel. It can only be replayed with the grids with which it was recorded, so
//! batches are padded to a few shapes: see [`GraphKey::new`].

use super::device::GraphId;

/// Maximum number of shapes: two numbers of tiles for each number of tokens up to
/// [`GRAPH_TOKENS_MAX`], in steps of [`TOKEN_BUCKET`].
pub(crate) const GRAPHS_MAX: usize = 64;
/// Tokens of a batch are padded to a multiple of this. It is the number of rows of the smallest
/// tile of a product, so that the padding of products takes no time.
pub(crate) const TOKEN_BUCKET: usize = 64;
/// Maximum number of tokens of a batch that is replayed. For larger batches, the launches take
/// little time compared with the execution.
pub(crate) const GRAPH_TOKENS_MAX: usize = 2048;

/// Shape of a batch: all launches of two batches with the same shape have the same grids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GraphKey {
    /// Number of tokens with padding.
    pub(crate) tokens: usize,
    /// Number of tiles of the attention, including idle ones.
    pub(crate) tiles: usize,
}

/// Method by which a batch is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GraphDecision {
    /// Launches the kernels one by one.
    Eager,
    /// Records a graph and replays it.
    Capture,
    /// Replays a graph.
    Replay(GraphId),
}

/// A decision, and the graph to release before it is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GraphStep {
    pub(crate) decision: GraphDecision,
    pub(crate) evicted: Option<GraphId>,
}

/// The shapes of recent batches, and their graphs.
#[derive(Debug)]
pub(crate) struct GraphCache {
    /// The most recently used shape is the last one.
    entries: Vec<GraphEntry>,
    capacity: usize,
}

#[derive(Debug)]
struct GraphEntry {
    key: GraphKey,
    /// `None` until the second batch of the shape.
    graph: Option<GraphId>,
}

// === impl GraphKey ===

impl GraphKey {
    /// Returns the shape of a batch: tokens are rounded up to a multiple of [`TOKEN_BUCKET`], and
    /// tiles to a number with three significant bits, which adds less than a quarter of idle ones.
    pub(crate) fn new(tokens: usize, tiles: usize) -> Self {
        let step = 1 << tiles.max(1).ilog2().saturating_sub(2);
        Self { tokens: tokens.next_multiple_of(TOKEN_BUCKET), tiles: tiles.next_multiple_of(step) }
    }
}

// === impl GraphCache ===

impl GraphCache {
    /// Creates a cache of at most `capacity` shapes; with 0, every batch is executed eagerly.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: Vec::new(), capacity }
    }

    /// Decides how a batch is executed. The second batch of a shape is recorded: recording costs
    /// more than launching, and many shapes occur once.
    pub(crate) fn decide(&mut self, key: GraphKey) -> GraphStep {
        let keep = |decision| GraphStep { decision, evicted: None };
        if self.capacity == 0 || key.tokens > GRAPH_TOKENS_MAX {
            return keep(GraphDecision::Eager);
        }
        if let Some(at) = self.entries.iter().position(|entry| entry.key == key) {
            let entry = self.entries.remove(at);
            let decision = entry.graph.map_or(GraphDecision::Capture, GraphDecision::Replay);
            self.entries.push(entry);
            return keep(decision);
        }
        let oldest = (self.entries.len() >= self.capacity).then(|| self.entries.remove(0));
        self.entries.push(GraphEntry { key, graph: None });
        GraphStep { decision: GraphDecision::Eager, evicted: oldest.and_then(|entry| entry.graph) }
    }

    /// Adds the graph of a shape that was decided to be recorded.
    pub(crate) fn insert(&mut self, key: GraphKey, graph: GraphId) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) {
            entry.graph = Some(graph);
        }
    }

    /// Ends the use of graphs, and returns those to release.
    pub(crate) fn disable(&mut self) -> Vec<GraphId> {
        self.capacity = 0;
        self.clear()
    }

    /// Forgets all shapes, and returns the graphs to release.
    pub(crate) fn clear(&mut self) -> Vec<GraphId> {
        self.entries.drain(..).filter_map(|entry| entry.graph).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bucket: usize) -> GraphKey {
        GraphKey { tokens: bucket * TOKEN_BUCKET, tiles: bucket }
    }

    /// Uses a shape as an executor does, and returns the step.
    fn execute(cache: &mut GraphCache, bucket: usize) -> GraphStep {
        let step = cache.decide(key(bucket));
        if step.decision == GraphDecision::Capture {
            cache.insert(key(bucket), GraphId(bucket as u64));
        }
        step
    }

    fn keeps(decision: GraphDecision) -> GraphStep {
        GraphStep { decision, evicted: None }
    }

    fn replays(graph: u64) -> GraphStep {
        keeps(GraphDecision::Replay(GraphId(graph)))
    }

    #[test]
    fn the_number_of_graph_shapes_is_bounded() {
        assert_eq!(GraphKey::new(1, 1), GraphKey { tokens: 64, tiles: 1 });
        assert_eq!(GraphKey::new(64, 7), GraphKey { tokens: 64, tiles: 7 });
        assert_eq!(GraphKey::new(65, 9), GraphKey { tokens: 128, tiles: 10 });
        assert_eq!(GraphKey::new(2048, 33), GraphKey { tokens: 2048, tiles: 40 });
        for tiles in 1..5000_usize {
            let padded = GraphKey::new(64, tiles).tiles;
            assert!(padded >= tiles && 4 * padded <= 5 * tiles + 4, "{tiles} became {padded}");
        }
    }

    #[test]
    fn the_second_batch_of_a_shape_is_recorded_and_later_ones_are_replayed() {
        let mut cache = GraphCache::new(4);
        assert_eq!(execute(&mut cache, 1), keeps(GraphDecision::Eager));
        assert_eq!(execute(&mut cache, 1), keeps(GraphDecision::Capture));
        assert_eq!(execute(&mut cache, 1), replays(1));
        assert_eq!(execute(&mut cache, 2), keeps(GraphDecision::Eager));
        assert_eq!(execute(&mut cache, 1), replays(1));
        let large = GraphKey { tokens: GRAPH_TOKENS_MAX + TOKEN_BUCKET, tiles: 1 };
        assert_eq!([cache.decide(large), cache.decide(large)], [keeps(GraphDecision::Eager); 2]);
    }

    #[test]
    fn the_least_recently_used_shape_is_evicted() {
        let mut cache = GraphCache::new(2);
        for bucket in [1, 1, 2, 2] {
            execute(&mut cache, bucket);
        }
        assert_eq!(execute(&mut cache, 1), replays(1));
        let evicts = GraphStep { decision: GraphDecision::Eager, evicted: Some(GraphId(2)) };
        assert_eq!(execute(&mut cache, 3), evicts);
        assert_eq!(execute(&mut cache, 1), replays(1));
        assert_eq!(execute(&mut cache, 3), keeps(GraphDecision::Capture));
        assert_eq!(cache.entries.len(), 2, "bounded");
        let mut released = cache.disable();
        released.sort_by_key(|graph| graph.0);
        assert_eq!(released, [GraphId(1), GraphId(3)]);
        assert_eq!([execute(&mut cache, 1), execute(&mut cache, 1)], [keeps(GraphDecision::Eager); 2]);
    }
}
