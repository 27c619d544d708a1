//! Every adapter of every protocol is among the formats of the generated tests.

use super::adapter::Adapter;
use super::{RouteProtocol, RouteRules};
use crate::generic::GenericOptions;
use crate::tests::adapters::FORMATS as WIRE_FORMATS;
use crate::tests::key_pairs::formats::FORMATS as KEY_FORMATS;
use crate::tests::reference::PROTOCOLS;
use crate::tests::rules;

/// Generated calls that test an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GeneratedCalls {
    /// Lists of items in a JSON document.
    Lists,
    /// Conversations (`tests::chat`).
    Conversations,
    /// Tensors in a JSON document (`v2::tests::round_trip`).
    Tensors,
    /// Tensors in another message (`v2::tests::round_trip`, `v2::grpc::tests::round_trip`).
    OtherTensors,
    /// None, because no shared call has the format of the adapter.
    None,
}

// === impl GeneratedCalls ===

impl GeneratedCalls {
    const fn of(adapter: Adapter) -> Self {
        match adapter {
            Adapter::Embeddings
            | Adapter::Completions
            | Adapter::Moderations
            | Adapter::Tei(_)
            | Adapter::V1(_)
            | Adapter::MlFlow
            | Adapter::Seldon
            | Adapter::SageMaker
            | Adapter::BentoMl
            | Adapter::Ollama
            | Adapter::SgLang
            | Adapter::Cohere
            | Adapter::Contextual
            | Adapter::Pooling(_)
            | Adapter::Generic => Self::Lists,
            Adapter::Chat => Self::Conversations,
            Adapter::V2 => Self::Tensors,
            Adapter::V2Grpc | Adapter::SageMakerTensors => Self::OtherTensors,
            Adapter::TeiModel | Adapter::TeiDocuments | Adapter::Generation(_) => Self::None,
        }
    }
}

/// Returns the adapters of every protocol with its name.
fn adapters() -> Vec<(&'static str, RouteProtocol, Adapter)> {
    let of = |(name, protocol): (&'static str, RouteProtocol)| {
        let generic = Some(GenericOptions::new(Vec::new(), Vec::new()));
        let adapters = Adapter::of(&RouteRules { generic, ..rules("/*", protocol) });
        adapters.into_iter().map(move |adapter| (name, protocol, adapter))
    };
    PROTOCOLS.into_iter().flat_map(of).collect()
}

#[test]
fn every_adapter_with_a_list_of_items_has_a_round_trip_on_each_of_its_protocols() {
    for (name, protocol, adapter) in adapters() {
        // The formats of a route without a protocol are those of other protocols.
        let is_there = WIRE_FORMATS.iter().any(|own| {
            (protocol == RouteProtocol::Auto || own.protocol == protocol)
                && Adapter::recognise(own.protocol, own.path) == Some(adapter)
        });
        assert_eq!(is_there, GeneratedCalls::of(adapter) == GeneratedCalls::Lists, "{name}: {adapter:?}");
    }
}

#[test]
fn every_adapter_that_merges_json_has_generated_pairs_of_calls() {
    for (name, _, adapter) in adapters() {
        let is_there = KEY_FORMATS
            .iter()
            .flat_map(|own| own.paths.map(|path| Adapter::recognise(own.protocol, path)))
            .any(|own| own == Some(adapter));
        let is_json = matches!(
            GeneratedCalls::of(adapter),
            GeneratedCalls::Lists | GeneratedCalls::Conversations | GeneratedCalls::Tensors
        );
        assert_eq!(is_there, is_json, "{name}: {adapter:?}");
    }
}
