//! A whole encoder of the shape of all-MiniLM-L6-v2, with random weights: every kernel in the order
//! in which an executor launches it.

use groupage_ptx::{DevicePointer, KernelArgument};

use crate::attention;
use crate::fixture::{DeviceTensor, Fixture, pointer, size};
use crate::manifest::LoadedKernel;
use crate::reference::{self, add, dot, gather, gelu_erf, layer_norm, linear, normalize};
use crate::storage::StorageFormat;

const LAYERS: usize = 6;
const WIDTH: usize = 384;
const HEADS: usize = 12;
const HEAD_WIDTH: usize = 32;
const INNER: usize = 1536;
const EPSILON: f32 = 1e-12;
const VOCABULARY: usize = 40;
/// Rows and columns of the tiles of products, and rows of a block of normalisations.
const TILE: usize = 64;
const BLOCK_ROWS: usize = 4;
/// Two sequences of 12 tokens in total.
const LENGTHS: [usize; 2] = [7, 5];
const TOKENS: usize = 12;

/// Weight and bias of a linear layer.
#[derive(Debug)]
struct LinearLayer {
    weight: DeviceTensor,
    bias: DeviceTensor,
}

/// Factors and offsets of a normalisation.
#[derive(Debug)]
struct NormLayer {
    gamma: DeviceTensor,
    beta: DeviceTensor,
}

#[derive(Debug)]
struct EncoderLayer {
    qkv: LinearLayer,
    output: LinearLayer,
    attention_norm: NormLayer,
    inner: LinearLayer,
    outer: LinearLayer,
    inner_norm: NormLayer,
}

/// The weights, and the device that has them.
#[derive(Debug)]
struct Encoder {
    fixture: Fixture,
    tables: [DeviceTensor; 3],
    embedding_norm: NormLayer,
    layers: Vec<EncoderLayer>,
    instructions: u64,
}

// === impl Encoder ===

impl Encoder {
    fn new() -> Self {
        let mut fixture = Fixture::new(StorageFormat::BFloat16, 61);
        let tables = [VOCABULARY, TOKENS, 2].map(|rows| fixture.random(rows * WIDTH, 0.1));
        let embedding_norm = norm_layer(&mut fixture);
        let layer = |fixture: &mut Fixture| EncoderLayer {
            qkv: linear_layer(fixture, 3 * WIDTH, WIDTH),
            output: linear_layer(fixture, WIDTH, WIDTH),
            attention_norm: norm_layer(fixture),
            inner: linear_layer(fixture, INNER, WIDTH),
            outer: linear_layer(fixture, WIDTH, INNER),
            inner_norm: norm_layer(fixture),
        };
        let layers = (0..LAYERS).map(|_| layer(&mut fixture)).collect();
        Self { fixture, tables, embedding_norm, layers, instructions: 0 }
    }

    fn run(&mut self, name: &str, blocks: [usize; 3], arguments: &[KernelArgument]) {
        let kernel = LoadedKernel::load(name, StorageFormat::BFloat16);
        self.instructions += self.fixture.launch(&kernel, blocks, arguments).unwrap().instructions;
    }

    fn product(
        &mut self,
        name: &str,
        input: DevicePointer,
        layer: &LinearLayer,
        residual: DevicePointer,
        depth: usize,
    ) -> DevicePointer {
        let columns = layer.bias.values.len();
        let out = self.fixture.output(TOKENS * columns);
        let [weight, bias] = [&layer.weight, &layer.bias].map(pointer);
        let (input, residual, to) =
            (KernelArgument::Pointer(input), KernelArgument::Pointer(residual), KernelArgument::Pointer(out));
        let arguments = [input, weight, bias, residual, to, size(TOKENS), size(columns), size(depth)];
        self.run(&format!("gemm_{name}_{TILE}"), [columns.div_ceil(TILE), TOKENS.div_ceil(TILE), 1], &arguments);
        out
    }

    fn norm(&mut self, input: DevicePointer, layer: &NormLayer) -> DevicePointer {
        let out = self.fixture.output(TOKENS * WIDTH);
        let [gamma, beta] = [&layer.gamma, &layer.beta].map(pointer);
        let (input, residual, to) = (
            KernelArgument::Pointer(input),
            KernelArgument::Pointer(DevicePointer::NULL),
            KernelArgument::Pointer(out),
        );
        let arguments = [input, residual, gamma, beta, to, size(TOKENS), size(WIDTH), KernelArgument::F32(EPSILON)];
        self.run("residual_layer_norm", [TOKENS.div_ceil(BLOCK_ROWS), 1, 1], &arguments);
        out
    }

    fn embed(&mut self, ids: [&[u32]; 3]) -> DevicePointer {
        let out = self.fixture.output(TOKENS * WIDTH);
        let mut arguments = ids.map(|ids| KernelArgument::Pointer(self.fixture.upload_integers(ids))).to_vec();
        arguments.extend(self.tables.iter().map(pointer));
        arguments.extend([&self.embedding_norm.gamma, &self.embedding_norm.beta].map(pointer));
        arguments.extend([KernelArgument::Pointer(out), size(TOKENS), size(WIDTH), KernelArgument::F32(EPSILON)]);
        self.run("embedding_layer_norm", [TOKENS.div_ceil(BLOCK_ROWS), 1, 1], &arguments);
        out
    }

    /// Computes the embeddings with the kernels.
    fn forward(&mut self, ids: [&[u32]; 3]) -> Vec<f64> {
        let attention_kernel = LoadedKernel::load("attention_32", StorageFormat::BFloat16);
        let mut hidden = self.embed(ids);
        for layer in std::mem::take(&mut self.layers) {
            let qkv = self.product("bias", hidden, &layer.qkv, DevicePointer::NULL, WIDTH);
            let mixed = attention::launch(&mut self.fixture, &attention_kernel, qkv, &LENGTHS, HEADS).unwrap();
            let sum = self.product("bias_residual", mixed, &layer.output, hidden, WIDTH);
            hidden = self.norm(sum, &layer.attention_norm);
            let inner = self.product("bias_gelu_erf", hidden, &layer.inner, DevicePointer::NULL, WIDTH);
            let sum = self.product("bias_residual", inner, &layer.outer, hidden, INNER);
            hidden = self.norm(sum, &layer.inner_norm);
        }
        let offsets = self.fixture.upload_integers(&reference::offsets(&LENGTHS));
        let out = self.fixture.device.allocate(LENGTHS.len() * WIDTH * 4);
        let (from, offsets, to) =
            (KernelArgument::Pointer(hidden), KernelArgument::Pointer(offsets), KernelArgument::Pointer(out));
        let arguments = [from, offsets, to, size(WIDTH), size(WIDTH), KernelArgument::U32(1)];
        self.run("pool_mean", [LENGTHS.len(), 1, 1], &arguments);
        self.fixture.read_floats(out, LENGTHS.len() * WIDTH).unwrap()
    }

    /// Computes the embeddings in f64.
    fn expected(&self, ids: [&[u32]; 3]) -> Vec<Vec<f64>> {
        let normed = |values: &[f64], layer: &NormLayer| -> Vec<f64> {
            let rows = values.chunks_exact(WIDTH);
            rows.flat_map(|row| layer_norm(row, &layer.gamma.values, &layer.beta.values, f64::from(EPSILON))).collect()
        };
        let apply = |values: &[f64], layer: &LinearLayer, depth| {
            linear(values, &layer.weight.values, &layer.bias.values, depth)
        };
        let embedded = self.tables.iter().zip(ids).map(|(table, ids)| gather(&table.values, ids, WIDTH));
        let mut hidden = normed(&embedded.reduce(|a, b| add(&a, &b)).unwrap(), &self.embedding_norm);
        for layer in &self.layers {
            let qkv = apply(&hidden, &layer.qkv, WIDTH);
            let mixed = reference::attention(&qkv, &LENGTHS, HEADS, HEAD_WIDTH);
            hidden = normed(&add(&apply(&mixed, &layer.output, WIDTH), &hidden), &layer.attention_norm);
            let inner: Vec<f64> = apply(&hidden, &layer.inner, WIDTH).into_iter().map(gelu_erf).collect();
            hidden = normed(&add(&apply(&inner, &layer.outer, INNER), &hidden), &layer.inner_norm);
        }
        let mut rest = hidden.as_slice();
        let pooled = LENGTHS.map(|length| {
            let (sequence, after) = rest.split_at(length * WIDTH);
            rest = after;
            let sum = sequence.chunks_exact(WIDTH).map(<[f64]>::to_vec).reduce(|a, b| add(&a, &b));
            normalize(&sum.unwrap())
        });
        pooled.to_vec()
    }
}

fn linear_layer(fixture: &mut Fixture, columns: usize, depth: usize) -> LinearLayer {
    LinearLayer { weight: fixture.random(columns * depth, 0.1), bias: fixture.random(columns, 0.1) }
}

/// Factors around one, as trained models have.
fn norm_layer(fixture: &mut Fixture) -> NormLayer {
    let near_one: Vec<f64> = fixture.random(WIDTH, 0.2).values.iter().map(|value| 1.0 + value).collect();
    NormLayer { gamma: fixture.upload(&near_one), beta: fixture.random(WIDTH, 0.1) }
}

#[test]
fn an_encoder_of_six_layers_equals_its_reference() {
    let mut encoder = Encoder::new();
    let tokens: Vec<u32> = (0..12).map(|token| token * 5 % 37).collect();
    let positions: Vec<u32> = LENGTHS.iter().flat_map(|length| 0..u32::try_from(*length).unwrap()).collect();
    let types = [0; TOKENS];
    let ids = [tokens.as_slice(), &positions, &types];
    let expected = encoder.expected(ids);
    let actual = encoder.forward(ids);
    println!("{} instructions", encoder.instructions);
    for (actual, expected) in actual.chunks_exact(WIDTH).zip(&expected) {
        let cosine = dot(actual, expected) / dot(actual, actual).sqrt();
        assert!(cosine > 0.9995, "cosine {cosine}");
        assert!((dot(actual, actual) - 1.0).abs() < 1e-5, "unit length");
    }
    let [first, second] = expected.as_slice() else { panic!("two sequences") };
    assert!(dot(first, second) < 0.99, "the sequences differ, so the comparison is not of constants");
}
