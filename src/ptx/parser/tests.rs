use super::*;

fn kernel(body: &str) -> String {
    format!(".version 8.4\n.target sm_80\n.visible .entry f(.param .u64 f_param_0)\n{{\n.reg .b32 %r<4>;\n{body}\n}}\n")
}

#[test]
fn a_module_lists_its_kernels() {
    let module = Module::parse(&format!("{}{}", kernel("ret;"), kernel("ret;").replace("entry f", "entry g"))).unwrap();
    assert_eq!(module.kernel_names().collect::<Vec<_>>(), ["f", "g"]);
    assert_eq!(module.kernel("g").unwrap().instructions.len(), 1);
}

#[test]
fn errors_name_the_line_and_the_statement() {
    let refused = [
        ("frob.u32 %r1, %r2;", "instruction frob is not supported"),
        ("add.sat.s32 %r1, %r2, %r3;", "modifier .sat of add is not supported"),
        ("add.u32 %r1, %r2;", "1 sources, where 2 are expected"),
        ("add.u32 %r1, %r2, %r9;", "%r9 is not a register"),
        ("add.f64 %r1, %r2, %r3;", "type .f64 is not supported"),
        ("bra $L;", "$L is not a label of the kernel"),
        ("ld.param.u64 %r1, [f_param_1];", "f_param_1 is not a parameter of the kernel"),
        ("ld.global.v2.u32 {%r1}, [%r2];", "1 elements, where 2 are expected"),
        ("ld.u32 %r1, [%r2];", "ld needs one of .global .shared .local"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r1}, {%r1}, {%r1}, {%r1};", "without .m16n8k16"),
        ("cp.async.ca.shared.global [%r1], [%r2], 12;", "a copy has [4, 8, 16] bytes"),
        ("cp.async.cg.shared.global [%r1], [%r2], 8;", "a copy has [16] bytes"),
        ("cp.async.wait_all;", "cp needs one of .cg .ca"),
        ("setp.lt.ftz.f32 %r1, %r2, %r3;", "modifier .ftz of setp is not supported"),
        ("ld.shared.nc.u32 %r1, [%r2];", "modifier .nc of ld is not supported"),
        (".reg .b32 %q<65536>;", "more than 65536 registers"),
        ("cvt.rni.s32.f32 %r1, %r2;", "cvt without .rzi is not supported"),
        (".global .b32 x;", "directive .global is not supported"),
    ];
    for (body, reason) in refused {
        let error = Module::parse(&kernel(body)).unwrap_err();
        assert_eq!(error.line, 6, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn inner_scopes_hide_registers_and_end() {
    let body = "{\n.reg .b32 inner, %r<1>;\nmov.u32 inner, 1;\nmov.u32 %r1, inner;\n}\nret;";
    assert_eq!(Module::parse(&kernel(body)).unwrap().kernel("f").unwrap().register_names.len(), 6);
    let error = Module::parse(&kernel("{ .reg .b32 inner; }\nmov.u32 %r1, inner;")).unwrap_err();
    assert!(error.to_string().contains("inner is not a register"), "{error}");
}

#[test]
fn parameters_and_variables_are_aligned() {
    let text = ".extern .shared .align 16 .b8 dynamic[];\n.visible .entry f(.param .u32 a, .param .u64 b, .param .f32 c)\n\
                .maxntid 64, 1, 1\n{\n.shared .align 4 .b8 one[6];\n.shared .align 4 .f32 two;\n.local .align 8 .b8 depot[24];\nret;\n}";
    let module = Module::parse(text).unwrap();
    let kernel = module.kernel("f").unwrap();
    let offsets: Vec<_> = kernel.parameters.iter().map(|parameter| (parameter.kind, parameter.offset)).collect();
    assert_eq!(offsets, [(ParameterKind::Integer, 0), (ParameterKind::Pointer, 8), (ParameterKind::Float, 16)]);
    assert_eq!((kernel.threads_max, kernel.shared_bytes, kernel.local_bytes), (Some(64), 16, 32));
}
