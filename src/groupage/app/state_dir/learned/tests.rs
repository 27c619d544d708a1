use super::*;

fn learned_state() -> LearnedState {
    let name: Vec<u8> = (0..=255).collect();
    let cost = CostSnapshot {
        base: CostMeasure::Ragged,
        first_nanos: 9_000_000,
        samples: vec![CostSample { items: 4, weight: Weight { sum: 40, max: 17 }, nanos: 11_000_000 }],
        points: vec![CurvePoint { items: 4, nanos: 11_000_000, count: 3 }],
        largest: 32,
        tail_permille: 1250,
        noise_ppm: 1600,
        weights_matter: true,
        weight_milli: 10_000,
        heaviest_milli: vec![0, 17_000],
        padding_permille: 700,
    };
    let ceiling = CeilingSnapshot {
        bounded: SizeMeasure::PaddedWeight,
        max: 640,
        refused: 1280,
        worked: 512,
        firm: true,
        retest_nanos: 600_000_000_000,
    };
    let upstream = UpstreamSnapshot { slots: 4, lead_nanos: 300_000, mean_nanos: 11_000_000, explore_permille: 250 };
    let flow = Some(FlowSnapshot { limit: 4, no_gain_permille: 0, base_nanos: 8_000_000 });
    let class = ClassSnapshot { cost, ceilings: vec![ceiling], flow };
    LearnedState { upstream, classes: vec![(name.into_boxed_slice(), class)] }
}

#[test]
fn learned_state_round_trips_with_the_server_identity() {
    let identity = ServerIdentity { server: Some("uvicorn".to_owned()), model: Some("bge a1".to_owned()) };
    let bytes = write(&learned_state(), "http://m", identity.clone(), usize::MAX).unwrap();
    let (read, stored_identity) = read(&bytes, "http://m").unwrap();
    assert_eq!(format!("{read:?}"), format!("{:?}", learned_state()));
    assert_eq!(stored_identity, identity);
}

#[test]
fn a_file_without_limiters_is_read() {
    let bytes = write(&learned_state(), "http://m", ServerIdentity::default(), usize::MAX).unwrap();
    let mut file: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    file["classes"][0].as_object_mut().unwrap().remove("limiter").unwrap();
    let (read, _) = read(file.to_string().as_bytes(), "http://m").unwrap();
    assert_eq!((read.classes[0].1.flow, read.upstream.slots), (None, 4));
}

#[test]
fn another_server_another_format_and_a_broken_file_have_different_errors() {
    let bytes = write(&learned_state(), "http://m", ServerIdentity::default(), usize::MAX).unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    let refusal = |text: &str| read(text.as_bytes(), "http://n").map(|_| ()).unwrap_err();
    assert!(refusal(&text).contains("another model server, http://m"));
    let later = text.replacen("\"format\":1", "\"format\":2,\"new\":[]", 1);
    assert!(refusal(&later).contains("format 2"));
    assert!(refusal("").contains("cannot be read") && refusal("[]").contains("cannot be read"));
    for cut in 0..bytes.len() {
        assert!(read(bytes.get(..cut).unwrap(), "http://m").is_err(), "{cut}");
    }
    let broken = text.replacen("\\\\x00", "\\\\x0", 1);
    assert!(read(broken.as_bytes(), "http://m").is_err());
}

#[test]
fn a_name_that_is_too_long_and_classes_beyond_the_bound_are_not_kept() {
    let mut many = learned_state();
    let (_, snapshot) = many.classes.remove(0);
    let long = vec![b'a'; NAME_BYTES_MAX + 1];
    let names = std::iter::once(long).chain((0..100_u32).map(|name| name.to_be_bytes().to_vec()));
    many.classes = names.map(|name| (name.into_boxed_slice(), snapshot.clone())).collect();
    let (read, _) =
        read(&write(&many, "http://m", ServerIdentity::default(), usize::MAX).unwrap(), "http://m").unwrap();
    assert_eq!(read.classes.len(), CLASSES_MAX);
    let small = write(&many, "http://m", ServerIdentity::default(), 4096).unwrap();
    let (read, _) = self::read(&small, "http://m").unwrap();
    assert!(small.len() <= 4096 && (1..CLASSES_MAX).contains(&read.classes.len()), "{}", read.classes.len());
}
