//! The text of plans: what is printed is read back exactly, right plan or wrong.

mod common;

use common::{fused, tiny, ty};
use glmc_ir::entities::{BufId, ParamId, StateId, WeightId};
use glmc_ir::graph::Span;
use glmc_ir::kernel::{Access, Kernel};
use glmc_ir::mutate::{MutantClass, mutate};
use glmc_ir::plan::*;
use glmc_ir::text::{parse_plan, print_plan};
use glmc_ir::ty::TensorType;
use proptest::prelude::*;

#[test]
fn the_small_plans_print_and_read_back() {
    for plan in [tiny(), fused()] {
        let text = print_plan(&plan);
        assert_eq!(parse_plan(&text).unwrap(), plan, "{text}");
        assert_eq!(print_plan(&parse_plan(&text).unwrap()), text);
    }
    insta::assert_snapshot!("tiny", print_plan(&tiny()));
    insta::assert_snapshot!("fused", print_plan(&fused()));
}

#[test]
fn mutants_print_and_read_back() {
    for class in MutantClass::ALL {
        for m in (0..8).filter_map(|s| mutate(&tiny(), class, s)) {
            assert_eq!(parse_plan(&print_plan(&m)).unwrap(), m);
        }
    }
}

#[test]
fn wrong_text_is_refused_with_its_line() {
    let text = print_plan(&tiny());
    let cases = [
        ("plan 1 {", "plan {", "line 1"),
        ("weight w1 ", "weight w7 ", "line 10"),
        ("state s0", "state s1", ""),
        ("y: write b1 = ", "y: write b77 = ", ""),
        ("step 3 ", "step 4 ", ""),
        ("= rms_norm {eps", "= rms_nrm {eps", ""),
        ("= rms_norm {eps: ", "= rms_norm {epsilon: ", ""),
        ("arena[0x0", "arena[0xg", ""),
        ("x: read b0", "x: reads b0", ""),
        ("x: read b0", "x: read q0", ""),
    ];
    for (from, to, at) in cases {
        let edited = text.replacen(from, to, 1);
        assert_ne!(edited, text, "{from}");
        let d = parse_plan(&edited).expect_err(to);
        assert!(!d.code.is_empty() && d.at.starts_with("line") && (at.is_empty() || d.at.starts_with(at)), "{to}: {d}");
    }
    for end in (0..text.len() - 2).step_by(7).filter(|i| text.is_char_boundary(*i)) {
        assert!(parse_plan(&text[..end]).is_err(), "a text cut at {end} is read");
    }
}

fn types() -> impl Strategy<Value = TensorType> {
    prop::sample::select(vec![
        "f32[T, 32]",
        "bf16[S, {gate: 3, up: 4}/tp]",
        "q4_K[256, 512/tp] rows",
        "state f32[8, 16]",
        "i32[]",
        "f16[T, 4, 8] +tp",
        "f32[2] softmax+tp",
    ])
    .prop_map(ty)
}

fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z_][a-z0-9_.]{0,8}",
        prop::sample::select(vec!["", "part", "read", "two words", "\"}", "\u{e9}\n\\", "0x4", "rank", "as", ";"])
            .prop_map(str::to_owned),
    ]
}

fn kernels() -> impl Strategy<Value = Kernel> {
    let number = prop_oneof![Just(1e-5f64), Just(1e-6), Just(0.1), Just(3.0), 1e-9f64..1e9];
    prop_oneof![
        number.prop_map(|x| kernel("rms_norm", serde_json::json!({ "eps": x }))),
        (1usize..4, any::<bool>(), 0.01f64..1.0).prop_map(|(n, s, x)| {
            kernel("attention", serde_json::json!({ "parts": n, "scale": x, "selected": s }))
        }),
        prop::collection::vec(names(), 0..3).prop_map(|n| kernel("split", serde_json::json!({ "names": n }))),
        Just(kernel("append", serde_json::json!({}))),
    ]
}

fn kernel(name: &str, attrs: serde_json::Value) -> Kernel {
    let serde_json::Value::Object(attrs) = attrs else { panic!("attributes are an object") };
    Kernel::from_attrs(name, attrs).unwrap()
}

fn mems() -> impl Strategy<Value = Mem> {
    prop_oneof![
        (0u32..6).prop_map(|i| Mem::Buf(BufId::from_u32(i))),
        any::<u16>().prop_map(|i| Mem::Weight(WeightId::from_u32(i.into()))),
        any::<u16>().prop_map(|i| Mem::State(StateId::from_u32(i.into()))),
        any::<u16>().prop_map(|i| Mem::Param(ParamId::from_u32(i.into()))),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let access = prop::sample::select(vec![Access::Read, Access::Write, Access::Update]);
    let arg = (names(), access, mems(), types()).prop_map(|(name, access, mem, ty)| Arg { name, access, mem, ty });
    (names(), kernels(), prop::collection::vec(arg, 0..4)).prop_map(|(name, kernel, args)| Step { name, kernel, args })
}

fn phases() -> impl Strategy<Value = Phase> {
    let buffer = (names(), types(), any::<u64>(), any::<u64>()).prop_map(|(name, ty, offset, bytes)| Buffer {
        name,
        ty,
        offset,
        bytes,
    });
    let param = (names(), types()).prop_map(|(name, ty)| Param { name, ty });
    let segment = (any::<usize>(), any::<usize>()).prop_map(|(first, count)| Segment { first, count });
    let overlap = (any::<usize>(), any::<usize>()).prop_map(|(step, done)| Overlap { step, done });
    let result = (names(), mems(), types()).prop_map(|(name, mem, ty)| PhaseResult { name, mem, ty });
    (
        (names(), any::<bool>(), any::<u64>(), any::<u64>()),
        prop::collection::vec((names(), any::<u64>()), 0..3),
        prop::collection::vec(param, 0..3),
        prop::collection::vec(buffer, 0..5),
        prop::collection::vec(steps(), 0..5),
        (prop::collection::vec(segment, 0..3), prop::collection::vec(overlap, 0..3)),
        prop::collection::vec(result, 0..3),
    )
        .prop_map(
            |((name, decode, tokens, arena_bytes), syms, params, buffers, steps, (segments, overlaps), results)| {
                Phase {
                    name,
                    kind: if decode { PhaseKind::Decode } else { PhaseKind::Prefill },
                    tokens,
                    syms: syms.into_iter().map(|(s, n)| (s.as_str().into(), n)).collect(),
                    params: params.into_iter().collect(),
                    buffers: buffers.into_iter().collect(),
                    arena_bytes,
                    steps,
                    segments,
                    overlaps,
                    results,
                }
            },
        )
}

fn slices() -> impl Strategy<Value = Slice> {
    let number = || prop_oneof![0u64..3, any::<u64>()];
    (any::<u32>(), number(), number(), number(), number()).prop_map(|(part, offset, bytes, count, stride)| Slice {
        part,
        offset,
        bytes,
        count,
        stride: if stride % 2 == 0 { bytes } else { stride },
    })
}

fn plans() -> impl Strategy<Value = Plan> {
    let recipe = (
        names(),
        names(),
        types(),
        (any::<u32>(), any::<u64>(), any::<u64>()),
        prop::collection::vec(prop::collection::vec(slices(), 0..3), 0..3),
    )
        .prop_map(|(name, tensor, ty, (part, offset, bytes), slices)| Recipe {
            name,
            tensor,
            ty,
            span: Span { part, offset, bytes },
            slices,
        });
    let state = (names(), types()).prop_map(|(name, ty)| State { name, ty });
    let file = (names(), any::<u64>(), any::<u64>(), names()).prop_map(|(path, bytes, header_bytes, hash)| FileRef {
        path,
        bytes,
        header_bytes,
        header_hash: hash.clone(),
        sample_hash: hash,
    });
    (
        (any::<u32>(), names(), names(), any::<u32>(), any::<u64>(), prop::collection::vec(any::<u32>(), 0..3)),
        prop::collection::vec((names(), any::<u64>()), 0..3),
        prop::collection::vec(file, 0..3),
        prop::collection::vec(recipe, 0..4),
        prop::collection::vec(state, 0..3),
        prop::collection::vec(phases(), 0..3),
    )
        .prop_map(|((format, a, b, ranks, n, stop), mesh, files, weights, states, phases)| Plan {
            format,
            producer: a.clone(),
            target: Target { name: b.clone(), arch: a.clone(), ranks },
            model: Model { arch: b, name: a, layers: n, vocab: n / 2, trained_ctx: n / 3, stop, suppress: vec![7, 9] },
            limits: Limits { ctx: n / 5, max_batch: n / 7, cache_rows: n / 11, chunk: n / 13 },
            mesh: mesh.into_iter().map(|(a, n)| (a.as_str().into(), n)).collect(),
            files,
            weights: weights.into_iter().collect(),
            states: states.into_iter().collect(),
            phases,
        })
}

proptest! {
    #[test]
    fn every_plan_reads_back(plan in plans()) {
        let text = print_plan(&plan);
        let back = parse_plan(&text).map_err(|d| TestCaseError::fail(format!("{d}\n{text}")))?;
        prop_assert_eq!(&back, &plan, "{}", text);
        prop_assert_eq!(print_plan(&back), text);
    }

    /// The verifier takes any plan at all.
    #[test]
    fn the_verifier_takes_any_plan(plan in plans()) {
        prop_assert!(glmc_ir::verify::plan::verify_plan(&plan).is_err());
    }
}
