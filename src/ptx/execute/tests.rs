//! Each group of instructions, from PTX of a few lines.

mod copies;

use crate::device::{Device, KernelArgument, LaunchShape};
use crate::fault::{DeviceFault, FaultKind};
use crate::parser::Module;

/// Runs a body in one warp. Its inputs are the words of `%rd1`; word `lane` is in `%r1`. The output
/// is `%rd3` for each lane, which `result` computes.
fn run_warp(input: &[u32], body: &str) -> Result<Vec<u64>, DeviceFault> {
    let text = format!(
        ".visible .entry test(.param .u64 a, .param .u64 b)\n{{\n\
         .reg .pred %p<8>; .reg .b16 %rs<8>; .reg .b32 %r<32>; .reg .f32 %f<16>; .reg .b64 %rd<16>;\n\
         .shared .align 16 .b8 shared[1024];\n\
         ld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [b];\nmov.u32 %r0, %laneid;\n\
         mad.wide.u32 %rd4, %r0, 4, %rd1;\nmad.wide.u32 %rd5, %r0, 8, %rd2;\n\
         ld.global.u32 %r1, [%rd4];\nmov.b32 %f1, %r1;\n{body}\nst.global.u64 [%rd5], %rd3;\nret;\n}}"
    );
    let module = Module::parse(&text).unwrap();
    let mut device = Device::new();
    let (a, b) = (device.allocate(1024), device.allocate(256));
    let mut bytes: Vec<u8> = input.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(1024, 0);
    device.upload(a, &bytes).unwrap();
    let shape = LaunchShape { blocks: [1; 3], threads: [32, 1, 1], shared_bytes: 0 };
    device.launch(&module, "test", shape, &[KernelArgument::Pointer(a), KernelArgument::Pointer(b)])?;
    let out = device.download(b, 256)?;
    Ok(out.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect())
}

/// Returns the 32-bit result of lane 0, of a body that writes `%r9`.
fn word(input: u32, body: &str) -> u32 {
    let body = format!("{body}\ncvt.u64.u32 %rd3, %r9;");
    u32::try_from(run_warp(&[input], &body).unwrap()[0]).unwrap()
}

/// Returns the f32 result of lane 0, of a body that computes `%f9` from `%f1`.
fn float(input: f32, body: &str) -> f32 {
    f32::from_bits(word(input.to_bits(), &format!("{body}\nmov.b32 %r9, %f9;")))
}

#[test]
fn integers_wrap_and_have_signs() {
    let minus_seven = (-7_i32).cast_unsigned();
    let cases = [
        ("add.s32 %r9, %r1, 8;", 1),
        ("sub.s32 %r9, 3, %r1;", 10),
        ("mul.lo.s32 %r9, %r1, 3;", (-21_i32).cast_unsigned()),
        ("mul.hi.s32 %r9, %r1, 3;", u32::MAX),
        ("mul.hi.u32 %r9, %r1, 3;", 2),
        ("mad.lo.s32 %r9, %r1, %r1, -9;", 40),
        ("div.s32 %r9, %r1, 2;", (-3_i32).cast_unsigned()),
        ("div.u32 %r9, %r1, 2;", minus_seven / 2),
        ("div.s32 %r9, %r1, 0;", u32::MAX),
        ("rem.s32 %r9, %r1, 4;", (-3_i32).cast_unsigned()),
        ("rem.u32 %r9, %r1, 4;", 1),
        ("min.s32 %r9, %r1, 4;", minus_seven),
        ("min.u32 %r9, %r1, 4;", 4),
        ("max.s32 %r9, %r1, 4;", 4),
        ("neg.s32 %r9, %r1;", 7),
        ("abs.s32 %r9, %r1;", 7),
        ("shl.b32 %r9, %r1, 1;", (-14_i32).cast_unsigned()),
        ("shl.b32 %r9, %r1, 32;", 0),
        ("shr.s32 %r9, %r1, 1;", (-4_i32).cast_unsigned()),
        ("shr.s32 %r9, %r1, 40;", u32::MAX),
        ("shr.u32 %r9, %r1, 28;", 15),
    ];
    for (body, expected) in cases {
        assert_eq!(word(minus_seven, body), expected, "{body}");
    }
}

#[test]
fn wide_products_have_twice_the_width() {
    let minus_two = (-2_i32).cast_unsigned();
    assert_eq!(run_warp(&[minus_two], "mul.wide.s32 %rd3, %r1, 3;").unwrap()[0], (-6_i64).cast_unsigned());
    assert_eq!(run_warp(&[minus_two], "mul.wide.u32 %rd3, %r1, 3;").unwrap()[0], 3 * u64::from(minus_two));
    let body = "mov.u64 %rd6, 100;\nmad.wide.s32 %rd3, %r1, 3, %rd6;";
    assert_eq!(run_warp(&[minus_two], body).unwrap()[0], 94);
}

#[test]
fn bits_are_selected() {
    let cases = [
        ("and.b32 %r9, %r1, 255;", 0xef),
        ("or.b32 %r9, %r1, 16;", 0xdead_beff),
        ("xor.b32 %r9, %r1, -1;", 0x2152_4110),
        ("not.b32 %r9, %r1;", 0x2152_4110),
        ("bfe.u32 %r9, %r1, 8, 8;", 0xbe),
        ("bfe.s32 %r9, %r1, 8, 8;", 0xffff_ffbe),
        ("bfe.s32 %r9, %r1, 24, 16;", 0xffff_ffde),
        ("bfe.u32 %r9, %r1, 24, 0;", 0),
        ("bfi.b32 %r9, 5, %r1, 4, 8;", 0xdead_b05f),
        ("bfi.b32 %r9, 5, %r1, 0, 32;", 5),
        ("lop3.b32 %r9, %r1, 255, 3840, 0xEA;", 0xfef),
        ("lop3.b32 %r9, %r1, 255, -1, 0x96;", 0x2152_41ef),
        ("prmt.b32 %r9, %r1, 0, 0x0123;", 0xefbe_adde),
        ("prmt.b32 %r9, %r1, 0, 0x444B;", 0xff),
        ("shf.l.wrap.b32 %r9, %r1, %r1, 8;", 0xadbe_efde),
        ("shf.r.wrap.b32 %r9, %r1, %r1, 8;", 0xefde_adbe),
        ("mov.b32 {%rs1, %rs2}, %r1;\nmov.b32 %r9, {%rs2, %rs1};", 0xbeef_dead),
    ];
    for (body, expected) in cases {
        assert_eq!(word(0xdead_beef, body), expected, "{body}");
    }
}

#[test]
fn floats_are_rounded_once_and_flushed_on_request() {
    let close = |body: &str, input: f32, expected: f32| {
        let actual = float(input, body);
        assert!((actual - expected).abs() <= expected.abs() * 1e-6, "{body}: {actual}, expected {expected}");
    };
    close("add.f32 %f9, %f1, 0f3F800000;", 0.5, 1.5);
    close("sub.rn.f32 %f9, %f1, 0f3F800000;", 0.5, -0.5);
    close("mul.f32 %f9, %f1, %f1;", 3.0, 9.0);
    close("div.rn.f32 %f9, %f1, 0f40000000;", 3.0, 1.5);
    close("max.f32 %f9, %f1, 0f3F800000;", 0.5, 1.0);
    close("max.f32 %f9, %f1, 0f3F800000;", f32::NAN, 1.0);
    close("min.f32 %f9, %f1, 0f3F800000;", 0.5, 0.5);
    close("neg.f32 %f9, %f1;", 0.5, -0.5);
    close("abs.f32 %f9, %f1;", -0.5, 0.5);
    close("ex2.approx.ftz.f32 %f9, %f1;", -1.5, 0.353_553_4);
    close("lg2.approx.f32 %f9, %f1;", 8.0, 3.0);
    close("rcp.approx.ftz.f32 %f9, %f1;", 8.0, 0.125);
    close("sqrt.rn.f32 %f9, %f1;", 9.0, 3.0);
    close("rsqrt.approx.f32 %f9, %f1;", 16.0, 0.25);
    close("tanh.approx.f32 %f9, %f1;", 0.5, 0.462_117_16);
    close("sin.approx.f32 %f9, %f1;", 0.5, 0.479_425_55);
    close("cos.approx.f32 %f9, %f1;", 0.5, 0.877_582_55);
    // One rounding: 1 + 2^-23 squared is 1 + 2^-22 + 2^-46. A fused sum keeps the last term.
    let fused = float(
        1.0 + f32::EPSILON,
        "neg.f32 %f2, %f1;\nmul.f32 %f3, %f1, %f1;\nneg.f32 %f3, %f3;\nfma.rn.f32 %f9, %f1, %f1, %f3;",
    );
    assert_eq!(fused.to_bits(), 2.0_f32.powi(-46).to_bits(), "{fused}");
    assert!(float(1e-40, "add.f32 %f9, %f1, 0f00000000;") > 0.0);
    assert_eq!(float(1e-40, "add.ftz.f32 %f9, %f1, 0f00000000;").to_bits(), 0);
}

#[test]
fn comparisons_handle_signs_and_nan() {
    let minus_one = u32::MAX;
    let chosen = |input, setp: &str| word(input, &format!("{setp}\nselp.b32 %r9, 1, 0, %p1;")) == 1;
    assert!(chosen(minus_one, "setp.lt.s32 %p1, %r1, 0;"));
    assert!(!chosen(minus_one, "setp.lt.u32 %p1, %r1, 0;"));
    assert!(chosen(minus_one, "setp.hi.u32 %p1, %r1, 0;"));
    assert!(chosen(5, "setp.ne.s32 %p1, %r1, 4;") && !chosen(5, "setp.eq.s32 %p1, %r1, 4;"));
    let nan = f32::NAN.to_bits();
    assert!(!chosen(nan, "setp.lt.f32 %p1, %f1, 0f00000000;") && chosen(nan, "setp.geu.f32 %p1, %f1, 0f00000000;"));
    assert!(!chosen(nan, "setp.ne.f32 %p1, %f1, %f1;") && chosen(nan, "setp.neu.f32 %p1, %f1, %f1;"));
    assert!(chosen(nan, "setp.nan.f32 %p1, %f1, %f1;") && !chosen(nan, "setp.num.f32 %p1, %f1, %f1;"));
    assert!(chosen(5, "setp.eq.s32 %p2, %r1, 5;\nsetp.eq.and.s32 %p1, %r1, 5, %p2;"));
    assert!(!chosen(5, "setp.eq.s32 %p2, %r1, 5;\nsetp.eq.and.s32 %p1, %r1, 5, !%p2;"));
    assert!(chosen(5, "setp.eq.s32 %p2, %r1, 4;\nnot.pred %p3, %p2;\nand.pred %p1, %p3, %p3;"));
}

#[test]
fn conversions_round_and_saturate() {
    assert_eq!(word((-3.7_f32).to_bits(), "cvt.rzi.s32.f32 %r9, %f1;"), (-3_i32).cast_unsigned());
    assert_eq!(word(1e20_f32.to_bits(), "cvt.rzi.s32.f32 %r9, %f1;"), i32::MAX.cast_unsigned());
    assert_eq!(word((-1.0_f32).to_bits(), "cvt.rzi.u32.f32 %r9, %f1;"), 0);
    assert_eq!(word(0xffff_fff0, "cvt.rn.f32.s32 %f9, %r1;\nmov.b32 %r9, %f9;"), (-16.0_f32).to_bits());
    assert_eq!(word(0xffff_0180, "cvt.u16.u32 %rs1, %r1;\ncvt.u32.u16 %r9, %rs1;"), 0x0180);
    assert_eq!(word(0x0080, "cvt.s32.s8 %r9, %r1;"), 0xffff_ff80);
    assert_eq!(run_warp(&[u32::MAX], "cvt.s64.s32 %rd3, %r1;").unwrap()[0], u64::MAX);
    assert_eq!(word(0x3c00, "cvt.u16.u32 %rs1, %r1;\ncvt.f32.f16 %f9, %rs1;\nmov.b32 %r9, %f9;"), 1.0_f32.to_bits());
    // Ties go to the even value: 1 + 2^-8 is between two bfloat16.
    let tie = (1.0_f32 + 1.0 / 256.0).to_bits();
    assert_eq!(word(tie, "cvt.rn.bf16x2.f32 %r9, 0f40000000, %f1;"), 0x4000_3f80);
    assert_eq!(word(tie, "cvt.rn.f16x2.f32 %r9, 0f40000000, %f1;"), 0x4000_3c04);
}

#[test]
fn immediates_have_the_bits_of_the_type() {
    let all = "setp.eq.u32 %p1, %r0, %r0;\n";
    for (body, bits) in [
        ("selp.b32 %rd3, -1, 0, %p1;", 32),
        ("selp.b16 %rd3, -1, 0, %p1;", 16),
        ("shfl.sync.idx.b32 %rd3, -1, 3, 31, -1;", 32),
        ("mov.b32 %rd3, -1;", 32),
    ] {
        assert_eq!(run_warp(&[], &format!("{all}{body}")).unwrap()[3], (1 << bits) - 1, "{body}");
    }
}

#[test]
fn vectors_are_loaded_and_stored() {
    let body = "ld.global.nc.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1+16];\nst.shared.v2.u32 [shared+8], {%r4, %r5};\n\
                ld.shared.u64 %rd3, [shared+8];";
    assert_eq!(run_warp(&[0, 1, 2, 3, 4, 5, 6, 7], body).unwrap()[31], 7 << 32 | 6);
    assert_eq!(word(0x8001_0000, "ld.global.u16 %r9, [%rd1+2];"), 0x8001);
    assert_eq!(word(0x8001_0000, "ld.global.s16 %r9, [%rd1+2];"), 0xffff_8001);
    let fault = run_warp(&[0], "ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1+8];").unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Misaligned { bytes: 16, .. }), "{fault}");
}

#[test]
fn shuffles_read_other_lanes() {
    let numbers: Vec<u32> = (100..132).collect();
    let shuffled = |operands: &str| {
        let body = format!("shfl.sync.{operands};\nselp.b32 %r3, 1, 0, %p1;\nmov.b64 %rd3, {{%r2, %r3}};");
        run_warp(&numbers, &body).unwrap()
    };
    let within = |value: u64| 1 << 32 | value;
    let butterfly = shuffled("bfly.b32 %r2|%p1, %r1, 4, 31, -1");
    assert_eq!((butterfly[0], butterfly[31]), (within(104), within(127)));
    let down = shuffled("down.b32 %r2|%p1, %r1, 8, 31, -1");
    assert_eq!((down[0], down[23], down[24]), (within(108), within(131), 124));
    let up = shuffled("up.b32 %r2|%p1, %r1, 8, 0, -1");
    assert_eq!((up[7], up[8], up[31]), (107, within(100), within(123)));
    let index = shuffled("idx.b32 %r2|%p1, %r1, 3, 31, -1");
    assert_eq!((index[0], index[31]), (within(103), within(103)));
    // Segments of 8 lanes: clamp 31, mask 24.
    let segments = shuffled("idx.b32 %r2|%p1, %r1, 3, 6175, -1");
    assert_eq!((segments[0], segments[9]), (within(103), within(111)));

    let inactive = "setp.lt.u32 %p2, %r0, 16;\n@%p2 shfl.sync.bfly.b32 %r2, %r1, 16, 31, 65535;\nmov.u64 %rd3, 0;";
    let fault = run_warp(&numbers, inactive).unwrap_err();
    assert_eq!(fault.kind, FaultKind::InactiveSource { source_lane: 16 });
    let fault = run_warp(&numbers, &inactive.replace("65535", "-1")).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::DivergentWarp { instruction: "shfl.sync", .. }), "{fault}");
}

/// Stores the lane number and lane + 32 as the 8 bytes of each lane in shared memory: as 16-bit
/// values, word `w` of the first 256 bytes holds `2w` and `2w + 1`.
const NUMBERED_HALVES: &str = "shl.b32 %r2, %r0, 3;\nshl.b32 %r3, %r0, 2;\nadd.s32 %r4, %r3, 1;\n\
    add.s32 %r5, %r3, 2;\nadd.s32 %r6, %r3, 3;\nshl.b32 %r4, %r4, 16;\nor.b32 %r4, %r4, %r3;\nshl.b32 %r6, %r6, 16;\n\
    or.b32 %r6, %r6, %r5;\nst.shared.v2.u32 [%r2], {%r4, %r6};\nshl.b32 %r7, %r0, 4;\nand.b32 %r7, %r7, 127;\n";

#[test]
fn matrices_are_loaded_in_fragment_layout() {
    let load = |modifiers: &str| {
        let body = format!(
            "{NUMBERED_HALVES}ldmatrix.sync.aligned.m8n8.x1{modifiers}.shared.b16 {{%r8}}, [%r7];\ncvt.u64.u32 %rd3, %r8;"
        );
        run_warp(&[], &body).unwrap()
    };
    let plain = load("");
    assert_eq!((plain[0], plain[1], plain[31]), (1 << 16, 3 << 16 | 2, 63 << 16 | 62));
    let transposed = load(".trans");
    assert_eq!((transposed[0], transposed[1], transposed[4]), (8 << 16, 24 << 16 | 16, 9 << 16 | 1));
    let body = format!(
        "{NUMBERED_HALVES}setp.gt.u32 %p1, %r0, 0;\n@%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r8}}, [%r7];\nmov.u64 %rd3, 0;"
    );
    let fault = run_warp(&[], &body).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::DivergentWarp { instruction: "ldmatrix", .. }), "{fault}");
}

#[test]
fn matrices_are_multiplied_in_fragment_layout() {
    // a[0][0] = 2 and a[8][1] = 3, b[0][0] = 5 and b[1][7] = 7: c[0][0] = 10 and c[8][7] = 21.
    let body = |format: &str, [two, three, five, seven]: [u32; 4]| {
        format!(
            "setp.eq.u32 %p1, %r0, 0;\nsetp.eq.u32 %p2, %r0, 28;\nmov.u32 %r7, 0;\n\
             selp.b32 %r2, {two}, 0, %p1;\nselp.b32 %r3, {}, 0, %p1;\nselp.b32 %r4, {five}, 0, %p1;\n\
             selp.b32 %r4, {}, %r4, %p2;\nmov.f32 %f4, 0f3F800000;\n\
             mma.sync.aligned.m16n8k16.row.col.f32.{format}.{format}.f32 {{%f5,%f6,%f7,%f8}},{{%r2,%r3,%r7,%r7}},{{%r4,%r7}},{{%f4,%f4,%f4,%f4}};\n\
             setp.eq.u32 %p3, %r0, 3;\nmov.b32 %r8, %f5;\nmov.b32 %r9, %f8;\nselp.b32 %r9, %r9, %r8, %p3;\ncvt.u64.u32 %rd3, %r9;",
            three << 16,
            seven << 16,
        )
    };
    let formats = [("bf16", [0x4000, 0x4040, 0x40a0, 0x40e0]), ("f16", [0x4000, 0x4200, 0x4500, 0x4700])];
    for (format, values) in formats {
        let out = run_warp(&[], &body(format, values)).unwrap();
        let value = |lane: usize| f32::from_bits(u32::try_from(out[lane]).unwrap());
        assert_eq!(
            [value(0), value(3), value(4)].map(f32::to_bits),
            [11.0_f32, 22.0, 1.0].map(f32::to_bits),
            "{format}"
        );
    }
}
