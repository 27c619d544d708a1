//! Limits that a model server publishes about itself or about one of its models.

/// Type of the model that a server executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelKind {
    /// Vectors of texts.
    Embedding,
    /// Scores of each class for a text or a pair of texts.
    Classifier,
    /// Scores of texts under a query.
    Reranker,
}

/// Limits that a server publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PublishedLimits {
    /// Maximum number of items in a call.
    pub items_max: Option<u32>,
    /// Maximum number of tokens in a batch.
    pub weight_max: Option<u64>,
    /// The first dimension of the model's tensors is not the batch, so that its calls are neither
    /// merged nor divided. `items_max` is then one, for calls that are queued already.
    pub has_no_batch: bool,
    /// The server forms batches from concurrent calls by itself.
    pub batches_itself: bool,
    /// Type of the only model of the server, if it is published.
    pub model_kind: Option<ModelKind>,
}

/// A response that is not valid JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the response is not JSON")]
pub struct NotJson;
