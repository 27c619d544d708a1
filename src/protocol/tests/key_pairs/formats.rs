//! The formats of the calls of which pairs are generated. `route::tests` checks that no adapter is
//! left out.

use crate::tests::declared_rules;
use crate::{RouteProtocol, RouteRules};

/// The calls of one adapter.
pub(crate) struct KeyFormat {
    pub(crate) protocol: RouteProtocol,
    pub(crate) paths: [&'static str; 2],
    /// Names of the items, once for each position that they may have. Parallel lists have the same
    /// items.
    pub(super) positions: &'static [&'static [&'static str]],
    /// Items as the value of a field, once for each class.
    pub(super) classes: &'static [[&'static str; 3]],
    /// Fields that a call must have, each with values.
    pub(super) required: &'static [(&'static str, &'static [&'static str])],
    /// `true` if a call with a field that the adapter does not know is merged.
    pub(super) takes_fields: bool,
}

const TEXTS: [&str; 3] = [r#"["a","b"]"#, r#"[ "\u0061" , "longer, \"text\" [" ]"#, "[\"汉\",\n\"]}\"]"];
const TOKENS: [&str; 3] = ["[[1,2],[3]]", "[ [7] , [8, 9] ]", "[[0],[1]]"];
const INTEGERS: [&str; 3] = ["[[1,2],[3,4]]", "[ [-7 , 0],[8, 9] ]", "[[0,1],[1,0]]"];
const FLOATS: [&str; 3] = ["[[1.0,2.5],[3.5,4e1]]", "[ [-7.0 , 0.5],[8e0, 9.1] ]", "[[0.0,1.0],[1.0,-0.0]]"];
const WIDER: [&str; 3] = ["[[1,2,3],[3,4,5]]", "[ [-7 , 0,1],[8, 9, 1] ]", "[[0,1,0],[1,0,0]]"];
const OBJECTS: [&str; 3] = [
    r#"[{"x":1,"y":2},{"x":0,"y":1}]"#,
    r#"[ {"x":3, "y" :1},{"x":2,"y":9}]"#,
    r#"[{"\u0078":1,"y":2},{"x":0,"y":1}]"#,
];
const REORDERED: [&str; 3] = [
    r#"[{"y":1,"x":2},{"y":0,"x":1}]"#,
    r#"[ {"y":3, "x" :1},{"y":2,"x":9}]"#,
    r#"[{"y":1,"\u0078":2},{"y":0,"x":1}]"#,
];
const STRINGS: [&str; 3] = [r#"[["a","b"],["c","d"]]"#, r#"[["", "b"],["c","\n"]]"#, r#"[["1","2"],["c","d"]]"#];
const CONVERSATIONS: [&str; 3] = [
    r#"[{"role":"user","content":"a"}]"#,
    r#"[ {"content" : "\u0061 ]}","role":"user"},{"role":"assistant","content":null} ]"#,
    r#"[{"role":"user","content":[{"type":"text","text":"汉"}]}]"#,
];

/// Items and the text that they are compared with, in one object.
const SENTENCES: [[&str; 3]; 2] = [
    [
        r#"{"sentences":["a","b"],"source_sentence":"s"}"#,
        r#"{ "source_sentence" : "s","sentences":["\u0061"]}"#,
        r#"{"sentences":["",  "s"],"source_sentence":"s"}"#,
    ],
    [
        r#"{"sentences":["a","b"],"source_sentence":"S"}"#,
        r#"{ "source_sentence" : "S","sentences":["\u0061"]}"#,
        r#"{"sentences":["",  "s"],"source_sentence":"S"}"#,
    ],
];

/// Rows of Seldon: integers, floats, named columns, and a tensor.
const SELDON_DATA: [[&str; 3]; 5] = [
    [r#"{"ndarray":[[1,2],[3,4]]}"#, r#"{ "ndarray" : [ [-7 , 0],[8, 9] ]}"#, r#"{"ndarray":[[0,1]]}"#],
    [r#"{"ndarray":[[1.0,2.5]]}"#, r#"{ "ndarray" : [ [-7e0 , 0.5],[8.0, 9.1] ]}"#, r#"{"ndarray":[[0.0,-0.0]]}"#],
    [
        r#"{"names":["a","b"],"ndarray":[[1,2]]}"#,
        r#"{"ndarray":[[-7 , 0],[8,9]], "names" : ["a", "b"]}"#,
        r#"{"names":["a","b"],"ndarray":[[0,1]]}"#,
    ],
    [
        r#"{"tensor":{"shape":[2,2],"values":[1,2,3,4]}}"#,
        r#"{ "tensor" : {"values":[ -7, 0 ],"shape":[ 1 ,2]}}"#,
        r#"{"tensor":{"shape":[1,2],"values":[0,1]}}"#,
    ],
    [
        r#"{"tensor":{"shape":[1,2,2],"values":[1,2,3,4]}}"#,
        r#"{ "tensor" : {"values":[ -7, 0, 8,9 ],"shape":[ 1 ,2,2]}}"#,
        r#"{"tensor":{"shape":[1,2,2],"values":[0,1,0,1]}}"#,
    ],
];

/// Items below the member that a route declares: texts, integers, floats, and with another member.
const DECLARED_ROWS: [[&str; 3]; 4] = [
    [r#"{"rows":["a","b"]}"#, r#"{ "rows" : ["\u0061"]}"#, r#"{"rows":["汉",""]}"#],
    [r#"{"rows":[1,2]}"#, r#"{ "rows" : [ -7 ]}"#, r#"{"rows":[0,10]}"#],
    [r#"{"rows":[1.0,2.5]}"#, r#"{ "rows" : [ -7e0 ]}"#, r#"{"rows":[-0.0,1E5]}"#],
    [r#"{"rows":[1,2],"k":1}"#, r#"{"k" : 1, "rows" : [ -7 ]}"#, r#"{"rows":[0,10],"k":1}"#],
];

/// Inputs of the Open Inference Protocol: flat and nested lists, with another name, shape and
/// datatype, with a number that is none, with texts, and with a second input.
const INPUTS: [[&str; 3]; 8] = [
    [
        r#"[{"name":"x","datatype":"FP32","shape":[2,2],"data":[1,2.5,3,4e1]}]"#,
        r#"[ {"shape":[ 1 ,2],"name":"x","data" : [ -0.10, 7 ],"datatype":"FP32"} ]"#,
        r#"[{"name":"x","datatype":"FP32","shape":[1,2],"data":[0,1]}]"#,
    ],
    [
        r#"[{"name":"x","datatype":"FP32","shape":[2,2],"data":[[1,2.5],[3,4e1]]}]"#,
        r#"[ {"shape":[ 1 ,2],"name":"x","data" : [[ -0.10, 7 ]],"datatype":"FP32"} ]"#,
        r#"[{"name":"x","datatype":"FP32","shape":[1,2],"data":[[0,1]]}]"#,
    ],
    [
        r#"[{"name":"y","datatype":"FP32","shape":[2,2],"data":[1,2.5,3,4e1]}]"#,
        r#"[ {"shape":[ 1 ,2],"name":"y","data" : [ -0.10, 7 ],"datatype":"FP32"} ]"#,
        r#"[{"name":"y","datatype":"FP32","shape":[1,2],"data":[0,1]}]"#,
    ],
    [
        r#"[{"name":"x","datatype":"FP32","shape":[2,2,1],"data":[1,2.5,3,4e1]}]"#,
        r#"[ {"shape":[ 1 ,2,1],"name":"x","data" : [ -0.10, 7 ],"datatype":"FP32"} ]"#,
        r#"[{"name":"x","datatype":"FP32","shape":[1,2,1],"data":[0,1]}]"#,
    ],
    [
        r#"[{"name":"x","datatype":"FP64","shape":[2,2],"data":[1,2.5,3,4e1]}]"#,
        r#"[ {"shape":[ 1 ,2],"name":"x","data" : [ -0.10, 7 ],"datatype":"FP64"} ]"#,
        r#"[{"name":"x","datatype":"FP64","shape":[1,2],"data":[0,1]}]"#,
    ],
    [
        r#"[{"name":"x","datatype":"FP32","shape":[2,2],"data":[1,2.5,NaN,4e1]}]"#,
        r#"[ {"shape":[ 1 ,2],"name":"x","data" : [ NaN, 7 ],"datatype":"FP32"} ]"#,
        r#"[{"name":"x","datatype":"FP32","shape":[1,2],"data":[0,NaN]}]"#,
    ],
    [
        r#"[{"name":"x","datatype":"BYTES","shape":[2,2],"data":["a","b","","汉"]}]"#,
        r#"[ {"shape":[ 1 ,2],"name":"x","data" : [ "\u0061", "]}" ],"datatype":"BYTES"} ]"#,
        r#"[{"name":"x","datatype":"BYTES","shape":[1,2],"data":["a","b"]}]"#,
    ],
    [
        r#"[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]},{"name":"y","datatype":"INT8","shape":[1],"data":[1]}]"#,
        r#"[{"name":"x","datatype":"FP32","shape":[1,2],"data":[0,1]},{"data":[-7],"name":"y","datatype":"INT8","shape":[1]}]"#,
        r#"[{"name":"x","datatype":"FP32","shape":[2,2],"data":[1,2,3,4]},{"name":"y","datatype":"INT8","shape":[2],"data":[1,2]}]"#,
    ],
];

/// A query, which the server reads beside the items.
const QUERY: &[(&str, &[&str])] = &[("query", &["\"q\"", "\"Q\"", "\"\\u0071\"", "\"q \"", "\"\""])];

/// Formats of all adapters that merge calls with a JSON document.
pub(crate) const FORMATS: [KeyFormat; 37] = [
    KeyFormat::new(
        RouteProtocol::OpenAi,
        ["/v1/embeddings", "/x/v1/embeddings"],
        &[&["input"]],
        &[TEXTS, TOKENS, OBJECTS],
    ),
    KeyFormat::new(RouteProtocol::OpenAi, ["/v1/completions", "/x/v1/completions"], &[&["prompt"]], &[TEXTS, TOKENS]),
    KeyFormat::new(RouteProtocol::OpenAi, ["/v1/moderations", "/x/v1/moderations"], &[&["input"]], &[TEXTS]),
    KeyFormat::new(
        RouteProtocol::Vllm,
        ["/v1/chat/completions", "/x/v1/chat/completions"],
        &[&["messages"]],
        &[CONVERSATIONS],
    ),
    KeyFormat::new(RouteProtocol::Vllm, ["/classify", "/x/classify"], &[&["input"]], &[TEXTS, TOKENS]),
    KeyFormat::new(RouteProtocol::Vllm, ["/pooling", "/x/pooling"], &[&["input"]], &[TEXTS, TOKENS]),
    KeyFormat::new(
        RouteProtocol::Vllm,
        ["/score", "/v1/score"],
        &[&["queries", "documents"], &["queries", "items"], &["text_1", "text_2"], &["data_1", "data_2"]],
        &[TEXTS],
    ),
    KeyFormat {
        required: QUERY,
        ..KeyFormat::new(RouteProtocol::Vllm, ["/rerank", "/v1/rerank"], &[&["documents"]], &[TEXTS])
    },
    KeyFormat::new(RouteProtocol::SgLang, ["/generate", "/x/generate"], &[&["text"], &["input_ids"]], &[TEXTS, TOKENS]),
    KeyFormat::new(RouteProtocol::SgLang, ["/classify", "/x/classify"], &[&["input"]], &[TEXTS]),
    KeyFormat {
        required: QUERY,
        ..KeyFormat::new(RouteProtocol::SgLang, ["/score", "/v1/score"], &[&["items"]], &[TEXTS])
    },
    KeyFormat {
        required: QUERY,
        ..KeyFormat::new(RouteProtocol::SgLang, ["/v1/rerank", "/x/v1/rerank"], &[&["documents"]], &[TEXTS])
    },
    KeyFormat::new(RouteProtocol::Infinity, ["/classify", "/x/classify"], &[&["input"]], &[TEXTS]),
    KeyFormat {
        required: QUERY,
        ..KeyFormat::new(RouteProtocol::Infinity, ["/rerank", "/x/rerank"], &[&["documents"]], &[TEXTS])
    },
    KeyFormat::new(RouteProtocol::Tgi, ["/v1/completions", "/x/v1/completions"], &[&["prompt"]], &[TEXTS]),
    KeyFormat::new(RouteProtocol::Tei, ["/embed", "/x/embed"], &[&["inputs"]], &[TEXTS, TOKENS]),
    KeyFormat::new(RouteProtocol::Tei, ["/embed_all", "/x/embed_all"], &[&["inputs"]], &[TEXTS, TOKENS]),
    KeyFormat::new(RouteProtocol::Tei, ["/embed_sparse", "/x/embed_sparse"], &[&["inputs"]], &[TEXTS, TOKENS]),
    KeyFormat::new(RouteProtocol::Tei, ["/predict", "/x/predict"], &[&["inputs"]], &[STRINGS]),
    KeyFormat {
        required: QUERY,
        ..KeyFormat::new(RouteProtocol::Tei, ["/rerank", "/x/rerank"], &[&["texts"]], &[TEXTS])
    },
    KeyFormat::new(RouteProtocol::Tei, ["/similarity", "/x/similarity"], &[&["inputs"]], &SENTENCES),
    KeyFormat::new(RouteProtocol::Tei, ["/tokenize", "/x/tokenize"], &[&["inputs"]], &[TEXTS]),
    KeyFormat::new(RouteProtocol::Tei, ["/decode", "/x/decode"], &[&["ids"]], &[TOKENS]),
    KeyFormat::new(
        RouteProtocol::KServeV1,
        ["/v1/models/m:predict", "/v1/models/n:predict"],
        &[&["instances"]],
        &[TEXTS, INTEGERS, FLOATS, WIDER, OBJECTS, STRINGS],
    ),
    KeyFormat::new(
        RouteProtocol::KServeV1,
        ["/v1/models/m:explain", "/v1/models/n:explain"],
        &[&["instances"]],
        &[TEXTS, INTEGERS, FLOATS, WIDER, OBJECTS, STRINGS],
    ),
    KeyFormat::new(
        RouteProtocol::TfServing,
        ["/v1/models/m:predict", "/v1/models/m/versions/2:predict"],
        &[&["instances"]],
        &[TEXTS, INTEGERS, FLOATS, WIDER, OBJECTS, STRINGS],
    ),
    KeyFormat::new(
        RouteProtocol::TfServing,
        ["/v1/models/m:regress", "/v1/models/m/versions/2:regress"],
        &[&["examples"]],
        &[OBJECTS, REORDERED],
    ),
    KeyFormat::new(
        RouteProtocol::TfServing,
        ["/v1/models/m:classify", "/v1/models/m/versions/2:classify"],
        &[&["examples"]],
        &[OBJECTS, REORDERED],
    ),
    KeyFormat::new(
        RouteProtocol::OpenInferenceV2,
        ["/v2/models/m/infer", "/v2/models/n/infer"],
        &[&["inputs"]],
        &INPUTS,
    ),
    KeyFormat::new(
        RouteProtocol::MlFlow,
        ["/invocations", "/x/invocations"],
        &[&["dataframe_records"], &["instances"], &["inputs"]],
        &[OBJECTS, REORDERED],
    ),
    KeyFormat::new(
        RouteProtocol::Seldon,
        ["/api/v1.0/predictions", "/x/api/v1.0/predictions"],
        &[&["data"]],
        &SELDON_DATA,
    ),
    KeyFormat::new(RouteProtocol::SageMaker, ["/invocations", "/x/invocations"], &[&["inputs"]], &[TEXTS]),
    KeyFormat {
        takes_fields: false,
        ..KeyFormat::new(
            RouteProtocol::BentoMl,
            ["/encode", "/x/encode"],
            &[&["texts"], &["inputs"]],
            &[TEXTS, INTEGERS, FLOATS, OBJECTS],
        )
    },
    KeyFormat::new(RouteProtocol::Cohere, ["/v1/embed", "/v2/embed"], &[&["texts"]], &[TEXTS]),
    KeyFormat::new(
        RouteProtocol::Voyage,
        ["/v1/contextualizedembeddings", "/x/v1/contextualizedembeddings"],
        &[&["inputs"]],
        &[STRINGS],
    ),
    KeyFormat::new(RouteProtocol::Ollama, ["/api/embed", "/x/api/embed"], &[&["input"]], &[TEXTS]),
    KeyFormat::new(RouteProtocol::Generic, ["/g", "/x/g"], &[&["in"]], &DECLARED_ROWS),
];

// === impl KeyFormat ===

impl KeyFormat {
    /// Creates a format without required fields.
    const fn new(
        protocol: RouteProtocol,
        paths: [&'static str; 2],
        positions: &'static [&'static [&'static str]],
        classes: &'static [[&'static str; 3]],
    ) -> Self {
        Self { protocol, paths, positions, classes, required: &[], takes_fields: true }
    }

    /// Returns the rules of a route for all paths.
    pub(super) fn rules(&self) -> RouteRules {
        declared_rules("/*", self.protocol)
    }
}
