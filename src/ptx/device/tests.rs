use super::*;
use crate::fault::{FaultLocation, MemorySpace};

/// A kernel of one parameter: a pointer in `%rd1`.
fn module(body: &str) -> Module {
    let text = format!(
        ".version 8.4\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 shared[];\n\
         .visible .entry test(.param .u64 p)\n{{\n\
         .reg .pred %p<8>; .reg .b16 %rs<8>; .reg .b32 %r<16>; .reg .f32 %f<8>; .reg .b64 %rd<8>;\n\
         .local .align 8 .b8 depot[16];\n.shared .align 4 .b8 static[8];\n\
         ld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd2, %rd2, %rd1;\n\
         {body}\nret;\n}}"
    );
    Module::parse(&text).unwrap()
}

fn shape(blocks: u32, threads: u32, shared_bytes: usize) -> LaunchShape {
    LaunchShape { blocks: [blocks, 1, 1], threads: [threads, 1, 1], shared_bytes }
}

/// Runs a body with one word of output a thread.
fn run(body: &str, shape: LaunchShape) -> Result<Vec<u32>, DeviceFault> {
    let mut device = Device::with_seed(3);
    let bytes = usize::try_from(shape.threads[0]).unwrap() * 4;
    let out = device.allocate(bytes);
    device.upload(out, &vec![0xff; bytes]).unwrap();
    device.launch(&module(body), "test", shape, &[KernelArgument::Pointer(out)])?;
    let bytes = device.download(out, bytes)?;
    Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

#[test]
fn branches_diverge_and_reconverge() {
    // Lanes loop `lane % 4` times; the shuffle needs all of them again.
    let body = "and.b32 %r2, %r1, 3;\nmov.u32 %r3, 0;\n\
                $L_loop:\nsetp.ge.u32 %p1, %r3, %r2;\n@%p1 bra $L_end;\nadd.s32 %r3, %r3, 1;\nbra $L_loop;\n\
                $L_end:\nshfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;\nst.global.u32 [%rd2], %r4;";
    let out = run(body, shape(1, 32, 0)).unwrap();
    assert_eq!(out[..8], [1, 0, 3, 2, 1, 0, 3, 2]);
}

#[test]
fn warps_exchange_values_through_shared_memory() {
    let body = "shl.b32 %r2, %r1, 2;\nmov.u32 %r3, shared;\nadd.s32 %r2, %r2, %r3;\nst.shared.u32 [%r2], %r1;\n\
                bar.sync 0;\nxor.b32 %r4, %r1, 63;\nshl.b32 %r4, %r4, 2;\nadd.s32 %r4, %r4, %r3;\n\
                ld.shared.u32 %r5, [%r4];\nst.global.u32 [%rd2], %r5;";
    let out = run(body, shape(1, 64, 256)).unwrap();
    assert_eq!((out[0], out[63]), (63, 0));
    let fault = run(&body.replace("bar.sync 0;", ""), shape(1, 64, 256)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::SharedRace { .. } | FaultKind::Uninitialized { .. }), "{fault}");
    let fault = run(body, shape(1, 64, 252)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::OutOfBounds { space: MemorySpace::Shared, bytes: 4, .. }), "{fault}");
}

#[test]
fn lanes_have_local_memory() {
    let body = "mov.u64 %rd3, depot;\ncvta.local.u64 %rd4, %rd3;\nst.local.u32 [%rd3+8], %r1;\n\
                ld.local.u32 %r2, [%rd4+8];\nst.global.u32 [%rd2], %r2;";
    assert_eq!(run(body, shape(1, 32, 0)).unwrap()[31], 31);
    let fault = run(&body.replace("[%rd3+8]", "[%rd3+16]"), shape(1, 32, 0)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::OutOfBounds { space: MemorySpace::Local, .. }), "{fault}");
}

#[test]
fn a_fault_names_kernel_line_block_warp_and_lane() {
    let body = "setp.eq.u32 %p1, %r1, 37;\n@%p1 ld.global.u32 %r2, [%rd2+1024];";
    let fault = run(body, shape(1, 64, 0)).unwrap_err();
    let location = FaultLocation { line: 15, block: [0, 0, 0], warp: 1, lane: Some(5) };
    assert_eq!((fault.kernel.as_deref(), fault.location.as_deref()), (Some("test"), Some(&location)));
    assert!(fault.to_string().starts_with("kernel test, line 15, block (0, 0, 0), warp 1, lane 5: 4 bytes"), "{fault}");
}

#[test]
fn blocks_race_for_a_location() {
    let fault = run("st.global.u32 [%rd2], %r1;", shape(2, 32, 0)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::GlobalRace { .. }), "{fault}");
    assert_eq!(run("st.global.u32 [%rd2], %r1;", shape(1, 32, 0)).unwrap()[7], 7);
}

#[test]
fn warps_of_a_block_race_for_a_location_of_global_memory() {
    // The warps write and read the words of the other one.
    let body = "st.global.u32 [%rd2], %r1;\nbar.sync 0;\nxor.b32 %r3, %r1, 32;\nmul.wide.u32 %rd3, %r3, 4;\n\
                add.s64 %rd3, %rd3, %rd1;\nld.global.u32 %r4, [%rd3];\nbar.sync 0;\nst.global.u32 [%rd2], %r4;";
    assert_eq!(run(body, shape(1, 64, 0)).unwrap()[..2], [32, 33]);
    for barrier in [0, 1] {
        let mut parts: Vec<&str> = body.split("bar.sync 0;\n").collect();
        let after = parts.remove(barrier + 1);
        let joined = format!("{}{after}", parts[barrier]);
        parts[barrier] = &joined;
        let fault = run(&parts.join("bar.sync 0;\n"), shape(1, 64, 0)).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::GlobalRace { .. }), "{fault}");
    }
}

#[test]
fn constants_are_not_written() {
    let body = "ld.global.nc.u32 %r2, [%rd2];\nst.global.u32 [%rd2], %r1;";
    let fault = run(body, shape(1, 32, 0)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::ReadOnlyWrite { .. }), "{fault}");
    run(&body.replace(".nc", ""), shape(1, 32, 0)).unwrap();
}

#[test]
fn registers_are_written_before_they_are_read() {
    let body = "setp.lt.u32 %p1, %r1, 8;\n@%p1 mov.u32 %r2, 5;\nst.global.u32 [%rd2], %r2;";
    let fault = run(body, shape(1, 32, 0)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::UnsetRegister { register: "%r2".to_owned() });
    assert_eq!(fault.location.unwrap().lane, Some(8), "the first lane that has not written it");
    assert_eq!(run(&body.replace("\nst", "\n@%p1 st"), shape(1, 32, 0)).unwrap()[..2], [5, 5]);
    let fault = run("@%p2 st.global.u32 [%rd2], %r1;", shape(1, 32, 0)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::UnsetRegister { register: "%p2".to_owned() }, "a guard");
}

#[test]
fn barriers_need_all_lanes_that_have_not_returned() {
    let guarded = "setp.lt.u32 %p1, %r1, 8;\n";
    let fault = run(&format!("{guarded}@%p1 bar.sync 0;"), shape(1, 32, 0)).unwrap_err();
    let expected = FaultKind::DivergentWarp { instruction: "bar.sync", active: 0xff, expected: u32::MAX };
    assert_eq!(fault.kind, expected);
    run(&format!("{guarded}@%p1 ret;\nbar.sync 0;"), shape(1, 32, 0)).unwrap();
    let fault = run(&format!("{guarded}@%p1 bar.warp.sync -1;"), shape(1, 32, 0)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::DivergentWarp { instruction: "bar.warp.sync", .. }), "{fault}");
    run(&format!("{guarded}@%p1 bar.warp.sync 255;"), shape(1, 32, 0)).unwrap();
}

#[test]
fn endless_loops_are_stopped() {
    let module = module("$L_loop:\nbra $L_loop;");
    let mut device = Device::new().with_instruction_limit(1000);
    let out = device.allocate(4);
    let fault = device.launch(&module, "test", shape(1, 32, 0), &[KernelArgument::Pointer(out)]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::InstructionLimit { limit: 1000 });
}

#[test]
fn a_kernel_without_a_return_is_an_error() {
    let text = ".visible .entry test(.param .u64 p)\n{\n.reg .b32 %r<2>;\nmov.u32 %r1, 1;\n}";
    let mut device = Device::new();
    let arguments = [KernelArgument::Pointer(DevicePointer::NULL)];
    let fault = device.launch(&Module::parse(text).unwrap(), "test", shape(1, 1, 0), &arguments).unwrap_err();
    assert_eq!(fault.kind, FaultKind::MissingReturn);
}

#[test]
fn launches_are_checked_against_the_kernel() {
    let module = module("");
    let mut device = Device::new();
    let pointer = KernelArgument::Pointer(device.allocate(4));
    let one = shape(1, 32, 0);
    let mut launch = |name, shape, arguments: &[KernelArgument]| device.launch(&module, name, shape, arguments);
    let refused = [
        (launch("other", shape(1, 32, 0), &[pointer]), "it has test"),
        (launch("test", shape(1, 32, 0), &[]), "0 arguments for 1 parameters"),
        (launch("test", shape(1, 32, 0), &[KernelArgument::U32(1)]), "parameter 0 is Pointer"),
        (launch("test", shape(0, 32, 0), &[pointer]), "a grid of 0 blocks"),
        (launch("test", shape(1, 2048, 0), &[pointer]), "a block of 2048 threads"),
        (launch("test", shape(1, 32, 1 << 20), &[pointer]), "bytes of shared memory"),
        (launch("test", LaunchShape { blocks: [1, 65_536, 1], ..one }, &[pointer]), "a grid of 65536 by 1 rows"),
        (launch("test", LaunchShape { blocks: [1, 1, 65_536], ..one }, &[pointer]), "a grid of 1 by 65536 rows"),
        (launch("test", LaunchShape { threads: [1, 1, 65], ..one }, &[pointer]), "a block of 65 layers"),
    ];
    for (result, reason) in refused {
        let fault = result.unwrap_err();
        assert!(fault.to_string().contains(reason) && fault.location.is_none(), "{fault}");
    }
    let report = device.launch(&module, "test", shape(3, 64, 0), &[pointer]).unwrap();
    assert_eq!(report, LaunchReport { instructions: 3 * 2 * 5, blocks: 3 });
}

#[test]
fn results_do_not_depend_on_the_seed() {
    let body = "shl.b32 %r2, %r1, 2;\nst.shared.u32 [%r2+16], %r1;\nbar.sync 0;\nld.shared.u32 %r3, [%r2+16];\n\
                st.global.u32 [%rd2], %r3;";
    let module = module(body);
    let run = |seed| {
        let mut device = Device::with_seed(seed);
        let out = device.allocate(512);
        device.launch(&module, "test", shape(1, 128, 512), &[KernelArgument::Pointer(out)]).unwrap();
        device.download(out, 512).unwrap()
    };
    assert!((1..8).all(|seed| run(seed) == run(0)));
}
