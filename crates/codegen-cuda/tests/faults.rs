//! Faults planted in the kernels: each must be found by the comparison with the contract's meaning, or by the guards of
//! the emulation, in every case that runs the changed lines. Shows that the tests beside it have power.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]

#[path = "support/host.rs"]
mod host;

use std::path::Path;
use std::sync::Arc;

use glmc_codegen_cuda::cases::faults::{self, Tally};
use glmc_codegen_cuda::cases::{Bound, Check, cases, matrices, meaning};
use glmc_codegen_cuda::host::{Job, JobResult, Order, Program};
use glmc_codegen_cuda::kernels::headers;
use glmc_codegen_cuda::{Activations, Arch, Generated, Options, emit};
use glmc_ir::kernel::Kernel;

/// A fault: the contract, which of its cases (a part of the name), the header, and the text that is changed.
struct Fault {
    what: &'static str,
    contract: &'static str,
    cases: &'static str,
    header: &'static str,
    from: &'static str,
    to: &'static str,
}

const fn fault(
    what: &'static str,
    contract: &'static str,
    cases: &'static str,
    header: &'static str,
    [from, to]: [&'static str; 2],
) -> Fault {
    Fault { what, contract, cases, header, from, to }
}

const FAULTS: [Fault; 30] = [
    fault(
        "the nibbles of the first byte of a block exchanged",
        "matmul",
        "q4_K ",
        "quant/q4_k.cuh",
        [">> (4 * (j / 32 % 2)) & 15u", ">> (4 * ((j / 32 + (j % 64 == 0 || j % 64 == 32)) % 2)) & 15u"],
    ),
    fault("a scale of the next run", "matmul", "q6_K ", "quant/q6_k.cuh", ["j / 16", "(j / 16 + 1) % 16"]),
    fault(
        "a scale of the next run",
        "grouped_matmul",
        "q4_K",
        "quant/q4_k.cuh",
        ["b + 4, j / 32", "b + 4, (j / 32 + 1) % 8"],
    ),
    fault("the last row skipped", "matmul", "tokens", "matmul.cuh", ["row < C::ROWS;", "row + 1 < C::ROWS;"]),
    fault(
        "the last row of floats skipped",
        "matmul",
        "1 x 3 x 8",
        "matmul.cuh",
        ["first + g >= C::ROWS ||", "first + g + 1 >= C::ROWS ||"],
    ),
    fault("the last row skipped", "grouped_matmul", "[1, ", "grouped.cuh", ["row < C::ROWS;", "row + 1 < C::ROWS;"]),
    fault("the tail of K not masked", "matmul", "x 65 x 129", "split.cuh", ["if (k + e < end)", "if (k + e <= end)"]),
    fault(
        "a block's last barrier left out",
        "rms_norm",
        "",
        "prim.cuh",
        ["  glmc_sync();\n  return warp_sum(", "  return warp_sum("],
    ),
    fault(
        "the mean forgotten",
        "layer_norm",
        "",
        "norm.cuh",
        ["first + i) - mean) * inverse", "first + i)) * inverse"],
    ),
    fault(
        "the last key not seen",
        "attention",
        "",
        "attention.cuh",
        ["*seen = len > 0 ? u32(len) : 0;", "*seen = len > 1 ? u32(len) - 1 : 0;"],
    ),
    fault(
        "old sums not shrunk",
        "attention",
        "x 300 keys",
        "attention.cuh",
        ["out[h][c] *= shrink[h];", "out[h][c] *= 1.0f;"],
    ),
    fault(
        "parts merged without their weights",
        "attention",
        "x 300 keys",
        "attention.cuh",
        ["y = glmc_fma(share[glmc_warp() + k * WARPS],", "y = glmc_fma(1.0f,"],
    ),
    fault(
        "the second key of a pair forgotten",
        "paged_attention",
        "x 300 rows",
        "attention.cuh",
        ["if (i + 1 < here) score[h * C::TILE + i + 1] = y;", ""],
    ),
    fault("the heads' ReLU forgotten", "indexer_scores", " 4 heads", "indexer.cuh", ["x < 0.0f ? 0.0f : x", "x"]),
    fault(
        "ties by the larger position",
        "topk",
        "ties, 1",
        "topk.cuh",
        ["equal && equal_before < equal_wanted", "equal && equals + (total >> 16) - 1 - equal_before < equal_wanted"],
    ),
    fault("the bias weighs", "moe_route", "bias: true", "route.cuh", [": gate[e];", ": choice[e];"]),
    fault("pairs rotated backwards", "rope", "", "rope.cuh", ["a * c - b * s", "a * c + b * s"]),
    fault(
        "a row off by one",
        "append",
        "at [3",
        "gather.cuh",
        ["C::PUT::put(args.pool, u64(row)", "C::PUT::put(args.pool, u64(row ^ 1)"],
    ),
    fault("the sum not kept", "add_rms_norm", "[3, 33]", "norm.cuh", ["C::H::put(args.h, first + i, v);", ""]),
    fault(
        "a piece's last element",
        "rope_join",
        "heads",
        "rows.cuh",
        [
            "i < N; i += glmc_threads()) PUT::put(y, to + i, element<X>",
            "i + 1 < N; i += glmc_threads()) PUT::put(y, to + i, element<X>",
        ],
    ),
    fault("a norm over too many", "latent_row", "", "rows.cuh", ["scratch) / f32(N)", "scratch) / f32(N + 1)"]),
    fault(
        "a row before the later one",
        "append_row",
        "at [-1, 3",
        "rows.cuh",
        ["later |= ids[u] == to;", "later |= ids[u] == to && u > row + 1;"],
    ),
    fault(
        "a bias of the next element",
        "index_row",
        "[(\"rest\", 33)",
        "rows.cuh",
        ["(b, at + i);", "(b, at + (i ^ 1));"],
    ),
    fault(
        "rows by position",
        "paged_attention",
        "5 tokens",
        "attention.cuh",
        ["place[i] = C::place(args, u64", "place[i] = i32(u64"],
    ),
    fault("gate without its gate", "gate_up", "", "prim.cuh", ["return x * sigmoid(x);", "return x;"]),
    fault(
        "old sums of a tile not shrunk",
        "attention",
        "33 tokens",
        "attention_tiles.cuh",
        ["glmc_fma(out[4 * wide + n][e], shrink[e / 2],", "glmc_fma(out[4 * wide + n][e], 1.0f,"],
    ),
    fault(
        "what is left of queries and weights forgotten",
        "attention",
        "20 tokens",
        "attention_tiles.cuh",
        ["of < 2 - part;", "of < 1;"],
    ),
    fault(
        "a tile's last key not seen",
        "attention",
        "70 tokens",
        "attention_tiles.cuh",
        ["s < limit[e / 2] &&", "s + 1 < limit[e / 2] &&"],
    ),
    fault(
        "a row's element of the next",
        "matmul",
        "qsc,hcn->qshn",
        "tensor.cuh",
        ["K + k) * INNER + r % INNER", "K + k) * INNER + (r ^ 1) % INNER"],
    ),
    fault("negative ids are row 0", "gather", "", "gather.cuh", ["if (id >= 0) {", "{ id = id < 0 ? 0 : id;"]),
];

/// Faults in the kernels of the lane layout; `cases` is a part of the check's name.
const IN_LANES: [Fault; 13] = [
    fault(
        "a scale of the next block",
        "matmul",
        "q8_0 [1, 512]",
        "activation.cuh",
        ["(x + A::SCALES)[unit];", "(x + A::SCALES)[(unit + 1) % A::UNITS];"],
    ),
    fault(
        "two nibbles exchanged",
        "matmul",
        "q4_K [1, 512]",
        "quant/lane.cuh",
        [
            "codes[i] = w[i] & 0x0f0f0f0fu;",
            "codes[i] = w[i] & 0x0f0f0f0fu; u32 c = codes[i]; \
             if (i == 3) codes[i] = c >> 8 & 15u | (c & 15u) << 8 | c & 0x0f0f0000u;",
        ],
    ),
    fault(
        "the last row skipped",
        "matmul",
        "q6_K [1, 512]",
        "gemv.cuh",
        ["row[r] >= s.rows) continue;", "row[r] + u32(s.row + s.rows == C::FREE) >= s.rows) continue;"],
    ),
    fault(
        "the last row skipped",
        "grouped_matmul",
        "q5_K [1, 3, 256]",
        "gemv.cuh",
        ["row[r] >= s.rows) continue;", "row[r] + u32(s.row + s.rows == C::FREE) >= s.rows) continue;"],
    ),
    fault(
        "the expert of the choice before",
        "grouped_matmul",
        "q8_0",
        "gemv.cuh",
        ["s.batch * C::FOLD + s.slot - first)", "(s.batch * C::FOLD + s.slot - first + 31) % 32)"],
    ),
    fault(
        "the scale of the next row",
        "matmul",
        "q8_0 [20, 512]",
        "tensor.cuh",
        ["scale[m][h] = scales[row];", "scale[m][h] = scales[row ^ 1];"],
    ),
    fault(
        "what is left of vectors forgotten",
        "matmul",
        "q6_K [20, 512]",
        "tensor.cuh",
        [
            "for (u32 part = 0; part < C::V::PARTS; ++part) {\n        u32 b",
            "for (u32 part = 0; part < 1; ++part) {\n        u32 b",
        ],
    ),
    fault("minima forgotten", "matmul", "q4_K [20, 512]", "tensor.cuh", ["if (WITH_MIN) t =", "if (false) t ="]),
    fault(
        "sums of what is left forgotten",
        "matmul",
        "q5_K [20, 512]",
        "split.cuh",
        ["sum += before[e] - x[e];", "sum += part ? 0.0f : before[e] - x[e];"],
    ),
    fault(
        "the result of the next choice",
        "grouped_matmul",
        "q4_K [20, 256]",
        "experts.cuh",
        ["y[n] = u64(c) * C::ROWS + row;", "y[n] = u64(c ^ 1) * C::ROWS + row;"],
    ),
    fault("no id is an expert", "grouped_gate_up", "q8_0", "gemv.cuh", ["id < 0 ? 0.0f", "id < 0 ? 1.0f"]),
    fault(
        "gate and up exchanged",
        "gate_up",
        "gated",
        "gemv.cuh",
        ["silu(sum[0]) * sum[C::WAYS - 1]", "silu(sum[C::WAYS - 1]) * sum[0]"],
    ),
    fault(
        "weights of the next choice",
        "grouped_down",
        "q8_0",
        "gemv.cuh",
        ["C::weight(args, s.batch * C::FOLD + slot)", "C::weight(args, s.batch * C::FOLD + (slot + 1) % C::FOLD)"],
    ),
];

/// What the emulation and the comparison say about each case under these headers.
fn results(f: &Fault, list: &[Check], planted: bool) -> Vec<Result<(), String>> {
    let mut headers = headers();
    if planted {
        let h = headers.iter_mut().find(|h| h.name == f.header).unwrap_or_else(|| panic!("no {}", f.header));
        assert!(h.text.contains(f.from), "{} holds no `{}`", f.header, f.from);
        h.text = h.text.replace(f.from, f.to);
    }
    let make = |c: &Check| c.kernel(Arch::Sm90).unwrap_or_else(|e| panic!("{}: {e}", c.what));
    let kernels: Vec<Generated> = list.iter().map(make).collect();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = Program::build_with(&emit::unit(&kernels), &headers, dir).unwrap_or_else(|e| panic!("{e}"));
    let pairs: Vec<_> = list.iter().zip(&kernels).map(|(c, k)| c.job(k).expect("a job")).collect();
    let jobs: Vec<Job> = pairs.iter().map(|p| p.0.clone()).collect();
    let [up, down] = [Order::Rising, Order::Falling].map(|o| program.run(&jobs, o).expect("it runs"));
    let mut out = Vec::new();
    for (((c, (_, bounds)), up), down) in list.iter().zip(&pairs).zip(up).zip(down) {
        let judge = || -> Result<(), String> {
            let (up, down) = (up?, down?);
            if up != down {
                return Err("depends on the order of threads".into());
            }
            c.judge(bounds, &up, &meaning(&c.case)?).map(drop)
        };
        out.push(judge());
    }
    out
}

#[test]
fn every_planted_fault_is_found() {
    if !host::compiler_is_there() {
        return;
    }
    find(&FAULTS, |f| {
        // One multiprocessor: attention goes through several tiles in one block.
        let options = Options { multiprocessors: Some(1), ..Options::default() };
        let all = cases(f.contract, 0).into_iter().filter(|c| c.what.contains(f.cases)).take(12);
        all.map(|c| Check::new(Arc::new(c), options.clone())).collect()
    });
}

#[test]
fn every_fault_planted_in_the_lane_kernels_is_found() {
    if !host::compiler_is_there() {
        return;
    }
    let all = matrices(0, Some(3));
    find(&IN_LANES, |f| {
        let of = |c: &&Check| c.case.kernel.name() == f.contract && c.what.contains(f.cases);
        let lane = |c: &&Check| c.options.activations == Activations::F32 && c.in_lanes();
        let tiles = ["tensor.cuh", "split.cuh", "experts.cuh"].contains(&f.header);
        let templates: &[&str] = if tiles { &["matmul_tensor<", "expert_tiles<"] } else { &["gemv_lane<"] };
        let taken = |c: &&Check| c.kernel(Arch::Sm90).is_ok_and(|k| templates.iter().any(|t| k.body.contains(t)));
        all.iter().filter(of).filter(lane).filter(taken).take(4).cloned().collect()
    });
}

/// Plants each fault, and panics with those that no case shows.
fn find(faults: &[Fault], checks: impl Fn(&Fault) -> Vec<Check>) {
    let mut missed = Vec::new();
    for f in faults {
        let list = checks(f);
        assert!(!list.is_empty(), "{}: no case of {} is called `{}`", f.what, f.contract, f.cases);
        let (sound, planted) = (results(f, &list, false), results(f, &list, true));
        for (c, r) in list.iter().zip(&sound) {
            assert!(r.is_ok(), "{} {}: {r:?}", f.contract, c.what);
        }
        let found = planted.iter().filter(|r| r.is_err()).count();
        let first = planted.iter().find_map(|r| r.as_ref().err()).cloned().unwrap_or_default();
        println!("{} in {}: {found} of {} cases, such as: {first:.120}", f.what, f.contract, list.len());
        if found == 0 {
            missed.push(format!("{} in {}", f.what, f.contract));
        }
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

/// Contracts of several ranks, which no launch of one has.
const COLLECTIVES: [&str; 5] = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter", "shard"];

/// Kernels of one program.
const UNIT: usize = 150;

/// What the emulation gives for each check.
fn emulated(list: &[(Check, Generated)]) -> Vec<(Vec<Bound>, JobResult)> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let one = |part: &[(Check, Generated)]| {
        let program = Program::build(&emit::unit(part.iter().map(|p| &p.1)), dir).unwrap_or_else(|e| panic!("{e}"));
        let (jobs, bounds): (Vec<Job>, Vec<_>) = part.iter().map(|(c, k)| c.job(k).expect("a job")).unzip();
        let back = program.run(&jobs, Order::Rising).expect("it runs");
        bounds.into_iter().zip(back).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = list.chunks(UNIT).map(|part| scope.spawn(move || one(part))).collect();
        parts.into_iter().flat_map(|p| p.join().expect("a part")).collect()
    })
}

#[test]
fn each_fault_is_seen_at_every_class_of_shapes() {
    if !host::compiler_is_there() {
        return;
    }
    let list = faults::all(3, Arch::Sm90, 1).expect("kernels");
    let right = emulated(&list);
    let wants: Vec<_> = list.iter().map(|(c, _)| meaning(&c.case).expect("a meaning")).collect();
    let mut tally = Tally::default();
    for fault in faults::Fault::ALL {
        let planted: Vec<(usize, (Check, Generated))> = faults::plant_all(fault, &list);
        let (of, planted): (Vec<usize>, Vec<(Check, Generated)>) = planted.into_iter().unzip();
        for (i, (_, back)) in of.into_iter().zip(emulated(&planted)) {
            let (check, kernel) = &list[i];
            tally.add(fault, (check, kernel), &right[i].0, &right[i].1, &back, &wants[i]);
        }
    }
    for ((fault, contract), [classes, checks, reached, found]) in tally.by_contract() {
        println!("{} in {contract}: {classes} classes, {found} found of {reached} reached of {checks}", fault.name());
    }
    let failures = tally.failures();
    assert!(failures.is_empty(), "{} are not seen: {failures:#?}", failures.len());
    // No family is left out.
    let contracts = |f| -> Vec<String> { tally.by_contract().into_keys().filter(|k| k.0 == f).map(|k| k.1).collect() };
    let all: Vec<&str> = Kernel::NAMES.iter().copied().filter(|n| !COLLECTIVES.contains(n)).collect();
    for fault in faults::Fault::ALL {
        let stored = |n: &&str| {
            list.iter().any(|(c, _)| c.case.kernel.name() == *n && c.quant().is_some_and(|q| q.block_elems() > 1))
        };
        let mut want: Vec<&str> = all.iter().copied().filter(|n| !fault.is_of_blocks() || stored(n)).collect();
        want.sort_unstable();
        assert_eq!(contracts(fault), want, "{fault:?}");
    }
}
