//! The metrics of the proxy. A new one is a row of this table, and a method that records it in the
//! module of its subject.

use strum::VariantArray as _;

use super::labels::{
    EXPIRE_REASONS, FloodReason, Outcome, OverheadStage, REJECT_REASONS, ReloadResult, SLO_RESULTS, VerifyResult,
    WaitReason,
};
use crate::batching::DispatchCause;
use crate::error::FailureKind;

metric_table! {
    /// A metric of the proxy.
    pub enum Metric;

    /// Series of calls and their items.
    struct CallSeries {
        Calls: Counter, "groupage_calls_total", "policy, protocol, outcome", "Client calls by outcome.";
        CallDuration: CallSeconds, "groupage_call_duration_seconds", "route, outcome",
            "End-to-end latency of every call, merged or not: from the request head to the complete response, or to the end of a response that passes through or streams.", optional = true;
        FirstToken: CallSeconds, "groupage_time_to_first_token_seconds", "route",
            "Time from the request head of a call for text to the first part of its streamed response.", optional = true;
        OutputTokenTime: Seconds, "groupage_time_per_output_token_seconds", "route",
            "Mean time between two tokens of a streamed response.", optional = true;
        Tokens: Counter, "groupage_tokens_total", "route, direction, source",
            "Tokens of calls for text: as the responses report them (usage), or events of streams that report none.", optional = true;
        CallsPassed: Counter, "groupage_calls_passed_total", "reason",
            "Calls that were not merged, by reason: forwarded untouched, or sent alone.";
        CallsDivided: Counter, "groupage_calls_divided_total", "",
            "Calls that were larger than a batch may be, and were sent in parts." => divided;
        CallParts: Counter, "groupage_call_parts_total", "", "Parts of such calls." => parts;
        CallsHeld: Counter, "groupage_calls_held_total", "reason",
            "Calls that were held before they were sent, by reason."
            => [held] of WaitReason::VARIANTS.iter().map(Into::into);
        Items: Counter, "groupage_items_total", "outcome",
            "Items of recognised calls by outcome." => [items] of Outcome::VARIANTS.iter().map(Into::into);
        ItemsRejected: Counter, "groupage_items_rejected_total", "reason",
            "Items that were not accepted, by reason." => [rejected] of REJECT_REASONS.map(FailureKind::reason);
        ItemsExpired: Counter, "groupage_items_expired_total", "reason",
            "Items that expired before they were sent: their deadline passed, or would have passed."
            => [expired] of EXPIRE_REASONS.map(FailureKind::reason);
        SloCalls: Counter, "groupage_slo_calls_total", "result",
            "Recognised calls with an SLO, of their class or else of their route, by whether the SLO was met."
            => [slo] of SLO_RESULTS;
    }

    struct BatchSeries {
        Dispatches: Counter, "groupage_dispatches_total", "cause",
            "Executions by the cause of their dispatch."
            => [dispatches] of DispatchCause::ALL.map(DispatchCause::as_str);
        BatchItems: Sizes, "groupage_batch_items", "", "Items in one execution." => items;
        BatchWeight: Sizes, "groupage_batch_weight", "", "Weight of one execution: tokens, rows or bytes." => weight;
        BatchOccupancy: Ratio, "groupage_batch_occupancy_ratio", "",
            "Items of an execution as a share of batchItemsMax." => occupancy;
        BatchPadding: Ratio, "groupage_batch_padding_ratio", "",
            "Share of an execution that would be padding if every item were padded to the heaviest." => padding;
        QueueDelay: Seconds, "groupage_queue_delay_seconds", "", "Time from acceptance to dispatch." => queue_delay;
        ExecutionDuration: Seconds, "groupage_execution_duration_seconds", "outcome",
            "Duration of one execution, including isolation." => [executions] of ["ok", "failed"];
        Overhead: Seconds, "groupage_overhead_seconds", "stage",
            "Time that the proxy itself spends on a call or a batch: read, merge, split, write."
            => [overhead] of OverheadStage::VARIANTS.iter().map(Into::into);
    }

    /// Series of one port's scheduler. Gauges have the label `port` if there are several ports;
    /// counters and histograms are the same for all of them.
    struct SchedulerSeries {
        QueueItems: Gauge, "groupage_queue_items", "", "Items accepted and not dispatched." => queue_items;
        QueueOldest: Gauge, "groupage_queue_oldest_seconds", "", "Age of the oldest queued call." => queue_oldest;
        QueueItemsLimit: Gauge, "groupage_queue_items_limit", "",
            "Maximum number of queued items." => queue_items_limit;
        SlotsInUse: Gauge, "groupage_slots_in_use", "", "Executions in flight." => slots_in_use;
        SlotsLimit: Gauge, "groupage_slots_limit", "", "Maximum number of executions in flight; +Inf if no limit is set." => slots_limit;
        SlotsLearned: Gauge, "groupage_slots_learned", "",
            "Learned number of executions that the upstream runs in parallel." => slots_learned;
        Lead: Gauge, "groupage_lead_seconds", "",
            "Learned time before the end of an execution at which the next one may be dispatched." => lead;
        ModelFixed: Gauge, "groupage_model_fixed_seconds", "",
            "Fixed duration of an execution, learned from recent executions." => model_fixed;
        ModelItem: Gauge, "groupage_model_item_seconds", "",
            "Duration that each item adds to an execution, learned from recent executions." => model_item;
        ModelError: Gauge, "groupage_model_error_ratio", "",
            "Mean error of the predicted duration of executions: the absolute logarithm of observed over predicted time."
            => model_error;
        ModelTail: Gauge, "groupage_model_tail_ratio", "",
            "Ratio of actual to predicted duration that 98 of 100 executions stay within." => model_tail;
        ModelChanges: Counter, "groupage_model_changes_total", "",
            "Times that a different upstream was detected and the learned model was reset." => model_changes;
        Exploration: Counter, "groupage_exploration_seconds_total", "",
            "Whole seconds spent on exploration: executions of batches whose size differed from the estimated optimum."
            => exploration;
        PlanSolve: Seconds, "groupage_plan_solve_seconds", "",
            "Time to compute the batch size for each load, on a separate thread." => plan_solve;
        StandingAside: Gauge, "groupage_standing_aside", "",
            "1 while calls are sent one by one because merging does not pay, or because the upstream batches by itself."
            => standing_aside;
        MergingSuspended: Gauge, "groupage_merging_suspended", "",
            "Kinds of calls that are not merged because the server rejected their batches and accepted their members alone."
            => merging_suspended;
        DeadlineShift: Gauge, "groupage_deadline_shift_seconds", "",
            "Time before their SLO by which calls are dropped or sent early, to leave time for the response to reach the caller; the maximum over all SLOs."
            => deadline_shift;
    }

    /// Series of upstream calls that isolation added and batching saved.
    struct UpstreamSeries {
        IsolationExecutions: Counter, "groupage_isolation_executions_total", "",
            "Upstream calls made to isolate a failed batch." => isolation_executions;
        ItemsIsolated: Counter, "groupage_items_isolated_total", "",
            "Items that were completed by isolation." => items_isolated;
        UpstreamCallsSaved: Counter, "groupage_upstream_calls_saved_total", "",
            "Upstream calls that batching made unnecessary." => calls_saved;
    }

    /// Series of connections with clients, and of certificates.
    struct ConnectionSeries {
        Connections: Gauge, "groupage_connections", "", "Connections open on the data port." => open;
        ConnectionsShed: Counter, "groupage_connections_shed_total", "",
            "Connections closed on accept, or evicted for others: the limit was reached, or no file descriptor was free."
            => shed;
        ConnectionsFlooded: Counter, "groupage_connections_flooded_total", "reason",
            "HTTP/2 connections that were ended because their client exceeded a limit, by reason: control frames that belong to no call, or header lines."
            => [flooded] of FloodReason::VARIANTS.iter().map(Into::into);
        ConnectionsRelayed: Counter, "groupage_connections_relayed_total", "reason",
            "Connections of captured ports that were relayed as bytes and cannot be merged, by reason.", optional = true;
        TlsHandshakesFailed: Counter, "groupage_tls_handshakes_failed_total", "reason",
            "Failed TLS handshakes with clients, by reason.", optional = true;
        TlsReloads: Counter, "groupage_tls_reloads_total", "side, result",
            "Reloads of changed certificate files, downstream or upstream, by result; after a refused reload the previous certificates stay in use.", optional = true;
        TlsExpiry: Gauge, "groupage_tls_certificate_expiry_seconds", "side",
            "Expiry of the certificate in use, in seconds since 1970.", optional = true;
    }

    /// Series of the process: memory, limits, configuration, control stream, predictions.
    struct ProcessSeries {
        BufferedBytes: Gauge, "groupage_buffered_bytes", "",
            "Bytes of requests and responses in memory." => buffered_bytes;
        BuffersEvicted: Counter, "groupage_buffers_evicted_total", "",
            "Unfinished uploads and unread responses that were evicted to free memory." => buffers_evicted;
        // Limits, batch responses and configuration.
        Limit: Gauge, "groupage_limit", "limit, source", "A limit in force and where it comes from.";
        Mismatches: Counter, "groupage_mismatches_total", "kind", "Batch responses that could not be split, by kind.";
        Verifications: Counter, "groupage_verify_total", "result",
            "Members of batches that were also sent alone, by the comparison of the two responses."
            => [verifications] of VerifyResult::VARIANTS.iter().map(Into::into);
        VerifyDifference: Gauge, "groupage_verify_difference_max_ratio", "",
            "Largest difference between numbers of two such responses, relative to the largest number of the result."
            => verify_difference;
        ConfigReloads: Counter, "groupage_config_reloads_total", "result",
            "Reloads of the settings, by result."
            => [config_reloads] of ReloadResult::VARIANTS.iter().map(Into::into);
        ConfigCurrent: Gauge, "groupage_config_current", "",
            "1 if the settings that were read last are in force, 0 if they were refused." => config_current;
        ConfigPending: Gauge, "groupage_config_pending_settings", "",
            "Changed settings under proxy and engine that take effect at the next start." => config_pending;
        // States of the process.
        CrashGuard: Gauge, "groupage_crash_guard", "",
            "1 while everything passes through untouched because the process crashed 3 times in a minute."
            => crash_guard;
        Draining: Gauge, "groupage_draining", "",
            "1 while no call is held: the pod is shutting down, or its application is being restarted." => draining;
        // The control stream.
        ControllerConnected: Gauge, "groupage_controller_connected", "",
            "1 while the control stream is open, else 0; absent without a controller.", optional = true;
        ControllerEnds: Counter, "groupage_controller_stream_ends_total", "reason",
            "Control streams that ended or could not be opened, by reason.", optional = true;
        ControllerUnknown: Counter, "groupage_controller_unknown_total", "what",
            "Messages and fields from the controller that this version does not know and ignored.", optional = true;
        // Predictions of mode `Observe`.
        PredictedCalls: Counter, "groupage_predicted_calls_total", "outcome",
            "Mode Observe: calls that passed through, by their predicted outcome in batches.", optional = true;
        PredictedDispatches: Counter, "groupage_predicted_dispatches_total", "",
            "Mode Observe: predicted upstream calls.", optional = true;
        PredictedBatchItems: Sizes, "groupage_predicted_batch_items", "",
            "Mode Observe: items in one predicted upstream call.", optional = true;
        PredictedQueueDelay: Seconds, "groupage_predicted_queue_delay_seconds", "",
            "Mode Observe: predicted time from acceptance to dispatch.", optional = true;
        PredictedLatency: Seconds, "groupage_predicted_latency_seconds", "",
            "Mode Observe: predicted time from arrival to response.", optional = true;
        Unpredicted: Counter, "groupage_unpredicted_calls_total", "reason",
            "Mode Observe: calls without a prediction, by reason.", optional = true;
        // The engine.
        EngineTokens: Counter, "groupage_engine_tokens_total", "", "Engine: tokens executed.", optional = true;
        EngineSequences: Counter, "groupage_engine_sequences_total", "", "Engine: sequences executed.", optional = true;
        EngineBatches: Counter, "groupage_engine_batches_total", "",
            "Engine: packed batches executed; one execution of the scheduler has several if its tokens exceed a batch.", optional = true;
        EngineExecution: Seconds, "groupage_engine_execution_seconds", "",
            "Engine: time to execute one packed batch.", optional = true;
        EngineTokenize: Seconds, "groupage_engine_tokenize_seconds", "",
            "Engine: time to parse and tokenise up to 16 calls on one thread.", optional = true;
        EngineRender: Seconds, "groupage_engine_render_seconds", "",
            "Engine: time to render the responses of one execution of the scheduler, or of one call that goes alone.", optional = true;
        EngineLaunches: Counter, "groupage_engine_launches_total", "mode",
            "Engine on a GPU: executions by how their kernels were launched: a replayed graph, one that was recorded, or one by one (eager).", optional = true;
        EnginePadding: Counter, "groupage_engine_padding_tokens_total", "",
            "Engine: tokens of padding, executed beside the tokens of groupage_engine_tokens_total: on a GPU up to the next multiple of 64, on a CPU none.", optional = true;
        EngineTokenCeiling: Gauge, "groupage_engine_token_ceiling", "",
            "Engine on a GPU: tokens up to which a batch is executed whole; it falls after a shortage of memory.", optional = true;
        EngineMemory: Gauge, "groupage_engine_memory_bytes", "use",
            "Engine: memory that it has reserved on its device, for weights and for scratch.", optional = true;
        // The binary.
        BuildInfo: Gauge, "groupage_build_info", "version", "Always 1.";
    }
}

// === impl Metric ===

impl Metric {
    /// Returns `true` if the metric is exposed only once it has a value, because most processes do
    /// not use its feature.
    #[must_use]
    pub const fn is_optional(self) -> bool {
        self.row().is_optional
    }
}
