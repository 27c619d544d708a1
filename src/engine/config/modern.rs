//! The fields of `ModernBERT` (Warner et al., arXiv:2412.13663).

use serde_json::Value;

use super::{
    Architecture, EncoderConfig, HIDDEN_MAX, INTERMEDIATE_MAX, LAYERS_MAX, POSITIONS_MAX, PositionScheme,
    VOCABULARY_MAX, parse_activation, parse_epsilon,
};
use crate::error::LoadError;
use crate::json::JsonFile;

/// Rotary position embeddings (Su et al., arXiv:2104.09864), and the layers with local attention.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryConfig {
    /// Base of the frequencies in layers with global attention.
    pub global_theta: f64,
    /// Base of the frequencies in layers with local attention.
    pub local_theta: f64,
    /// Maximum distance of a query and its keys in layers with local attention.
    pub window: usize,
    /// For each layer, `true` if it has local attention.
    pub is_local: Vec<bool>,
}

/// Maximum base of frequencies: models for contexts of a million tokens have at most 1e8 (Llama 3.1
/// has
/// 5e5).
const THETA_MAX: f64 = 1e9;

const UNSUPPORTED: &str = "use a model without this option";

pub(super) fn parse(file: &JsonFile) -> Result<EncoderConfig, LoadError> {
    let layers = file.size_required("num_hidden_layers", 1..=LAYERS_MAX)?;
    if file.get("rope_scaling").is_some() {
        return Err(file.error("rope_scaling", "null", UNSUPPORTED));
    }
    let local_attention = file.size("local_attention", 2..=POSITIONS_MAX)?.unwrap_or(128);
    let global_theta = parse_theta(file, "full_attention", "global_rope_theta", 160_000.0)?;
    // Version 4 of the library takes the global base in place of a null one.
    let is_null = file.has("local_rope_theta") && file.get("local_rope_theta").is_none();
    let local_default = if is_null { global_theta } else { 10_000.0 };
    let rotary = RotaryConfig {
        global_theta,
        local_theta: parse_theta(file, "sliding_attention", "local_rope_theta", local_default)?,
        window: local_attention / 2,
        is_local: parse_layer_types(file, layers)?,
    };
    Ok(EncoderConfig {
        architecture: Architecture::ModernBert,
        hidden: file.size_required("hidden_size", 1..=HIDDEN_MAX)?,
        layers,
        heads: file.size_required("num_attention_heads", 1..=HIDDEN_MAX)?,
        intermediate: file.size_required("intermediate_size", 1..=INTERMEDIATE_MAX)?,
        vocabulary: file.size_required("vocab_size", 1..=VOCABULARY_MAX)?,
        types: 0,
        norm_epsilon: parse_epsilon(file, "norm_eps", 1e-5)?,
        activation: parse_activation(file, "hidden_activation")?,
        positions: PositionScheme::Rotary(rotary),
        positions_max: file.size_required("max_position_embeddings", 1..=POSITIONS_MAX)?,
        head: None,
    })
}

/// Reads a base from `rope_parameters` (`transformers` 5), or from the field of earlier versions.
fn parse_theta(file: &JsonFile, attention: &str, field: &str, default: f64) -> Result<f64, LoadError> {
    if let Some(parameters) = file.object("rope_parameters")? {
        // Parameters for all layers together are those of other architectures.
        let is_known = |name: &&str| ["full_attention", "sliding_attention"].contains(name);
        if let Some(other) = parameters.fields().find(|name| !is_known(name)) {
            return Err(parameters.error(other, "full_attention and sliding_attention only", UNSUPPORTED));
        }
        if let Some(parameters) = parameters.object(attention)? {
            if parameters.text("rope_type")?.is_some_and(|rope| rope != "default") {
                return Err(parameters.error("rope_type", "default", UNSUPPORTED));
            }
            if let Some(theta) = parameters.number("rope_theta", 1.0..=THETA_MAX)? {
                return Ok(theta);
            }
        }
    }
    Ok(file.number(field, 1.0..=THETA_MAX)?.unwrap_or(default))
}

/// Reads `layer_types`, or `global_attn_every_n_layers` of earlier versions: of n layers, the first
/// is global.
fn parse_layer_types(file: &JsonFile, layers: usize) -> Result<Vec<bool>, LoadError> {
    let Some(types) = file.get("layer_types") else {
        let every = file.size("global_attn_every_n_layers", 1..=LAYERS_MAX)?.unwrap_or(3);
        return Ok((0..layers).map(|layer| layer % every != 0).collect());
    };
    let expected = format!("{layers} times full_attention or sliding_attention");
    let error = || file.error("layer_types", &expected, "use the `config.json` of the model");
    let types = types.as_array().filter(|types| types.len() == layers).ok_or_else(error)?;
    let is_local = |name: &Value| match name.as_str() {
        Some("sliding_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(error()),
    };
    types.iter().map(is_local).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(more: &str) -> Result<EncoderConfig, LoadError> {
        let text = format!(
            r#"{{"architectures": ["ModernBertModel"], "hidden_size": 64, "num_hidden_layers": 4,
            "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 128{more}}}"#
        );
        EncoderConfig::parse(&JsonFile::parse("config.json".to_owned(), text.as_bytes()).unwrap())
    }

    fn rotary(more: &str) -> RotaryConfig {
        match parse_text(more).unwrap().positions {
            PositionScheme::Rotary(rotary) => rotary,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_fields_of_both_versions_of_the_library_are_read() {
        let old = rotary(r#", "global_rope_theta": 5000, "local_attention": 16, "global_attn_every_n_layers": 2"#);
        let new = rotary(
            r#", "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5000}}, "local_attention": 16,
            "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]"#,
        );
        assert_eq!(old, new);
        assert_eq!((old.window, old.local_theta, old.is_local), (8, 10_000.0, vec![false, true, false, true]));
        assert_eq!(rotary("").is_local, [false, true, true, false]);
        let null = rotary(r#", "global_rope_theta": 5000, "local_rope_theta": null"#);
        assert_eq!((null.global_theta, null.local_theta), (5_000.0, 5_000.0));
        let partial = rotary(r#", "global_rope_theta": 5000, "rope_parameters": {"full_attention": {}}"#);
        assert_eq!((partial.global_theta, partial.local_theta), (5_000.0, 10_000.0));
    }

    /// Rotary embeddings rotate pairs of elements of a head.
    #[test]
    fn heads_of_an_odd_width_are_refused() {
        for heads in [r#""hidden_size": 4, "num_attention_heads": 4"#, r#""hidden_size": 12, "num_attention_heads": 4"#]
        {
            let error = parse_text(&format!(", {heads}")).unwrap_err().to_string();
            assert!(error.contains("`num_attention_heads`: found 4, expected heads of an even number"), "{error}");
        }
    }

    #[test]
    fn scaled_rotary_embeddings_are_refused() {
        let scaled = r#", "rope_parameters": {"full_attention": {"rope_type": "yarn"}}"#;
        let error = parse_text(scaled).unwrap_err().to_string();
        assert!(error.contains("`rope_parameters.full_attention.rope_type`: found \"yarn\""), "{error}");
        let flat = parse_text(r#", "rope_parameters": {"rope_type": "yarn", "factor": 4}"#).unwrap_err().to_string();
        assert!(flat.contains("`rope_parameters."), "{flat}");
        assert!(parse_text(r#", "layer_types": ["full_attention"]"#).is_err());
    }
}
