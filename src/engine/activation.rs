//! Activation functions by their names in `config.json`.

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// GELU by the error function: `x · Φ(x)` (Hendrycks and Gimpel, arXiv:1606.08415).
    Gelu,
    /// GELU by its approximation with the hyperbolic tangent, of the same paper.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x · sigmoid(x)`, also named swish.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
}

// === impl Activation ===

impl Activation {
    /// Names that [`Self::from_name`] knows.
    pub(crate) const NAMES: &'static str =
        "gelu, gelu_python, gelu_new, gelu_pytorch_tanh, gelu_fast, relu, silu, swish or tanh";

    /// Returns the function that the `transformers` library has under this name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "gelu" | "gelu_python" => Self::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Self::GeluTanh,
            "relu" => Self::Relu,
            "silu" | "swish" => Self::Silu,
            "tanh" => Self::Tanh,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_name_is_known() {
        let names: Vec<&str> = Activation::NAMES.split([',', ' ']).filter(|name| !["", "or"].contains(name)).collect();
        assert!(names.len() == 9 && names.iter().all(|name| Activation::from_name(name).is_some()), "{names:?}");
    }
}
