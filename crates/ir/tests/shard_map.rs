//! The cut of tensors: ranks partition a tensor exactly, and their slices are its bytes.

mod common;

use common::ty;
use glmc_ir::graph::Span;
use glmc_ir::plan::Slice;
use glmc_ir::shard_map::{CODES, Shard, largest_bytes, rank_count, recipe_slices};
use glmc_ir::ty::{Axis, Dim, Elem, Extent, Split, SymValues, TensorType};
use indexmap::IndexMap;
use proptest::prelude::*;

type Mesh = IndexMap<Axis, u64>;
type Case = (&'static str, &'static str, &'static [(&'static str, u64)]);

fn mesh(axes: &[(&str, u64)]) -> Mesh {
    axes.iter().map(|(a, n)| ((*a).into(), *n)).collect()
}

fn whole(t: &TensorType) -> Span {
    Span { part: 0, offset: 1000, bytes: t.bytes(&SymValues::default()).unwrap() }
}

fn slices(t: &str, axes: &[(&str, u64)]) -> Vec<Vec<Slice>> {
    recipe_slices(&ty(t), &mesh(axes), whole(&ty(t))).unwrap()
}

fn run(offset: u64, bytes: u64, count: u64, stride: u64) -> Slice {
    Slice { part: 0, offset: 1000 + offset, bytes, count, stride }
}

#[test]
fn whole_tensors_are_one_slice() {
    assert_eq!(slices("f32[3, 5, 7]", &[]), [[run(0, 420, 1, 420)]]);
    assert_eq!(slices("q8_0[4, 64] rows", &[("tp", 2)]), [[run(0, 272, 1, 272)], [run(0, 272, 1, 272)]]);
    assert_eq!(slices("f32[]", &[]), [[run(0, 4, 1, 4)]]);
}

#[test]
fn rows_columns_and_experts() {
    // Rows: contiguous.
    assert_eq!(slices("f32[4/tp, 8]", &[("tp", 2)]), [[run(0, 64, 1, 64)], [run(64, 64, 1, 64)]]);
    // Columns: one strided slice.
    assert_eq!(slices("q8_0[6, 64/tp] rows", &[("tp", 2)]), [[run(0, 34, 6, 68)], [run(34, 34, 6, 68)]]);
    // Rows of each expert: one run an expert; whole dims around a cut one repeat it at one distance.
    assert_eq!(slices("f32[3, 4/tp, 8]", &[("tp", 2)]), [[run(0, 64, 3, 128)], [run(64, 64, 3, 128)]]);
    // Experts over one axis, columns over another: first axis slowest.
    let both = slices("f32[4/ep, 2, 4/tp]", &[("ep", 2), ("tp", 2)]);
    assert_eq!(both[0], [run(0, 8, 4, 16)]);
    assert_eq!(both[1], [run(8, 8, 4, 16)]);
    assert_eq!(both[2], [run(64, 8, 4, 16)]);
    assert_eq!(both[3], [run(72, 8, 4, 16)]);
}

#[test]
fn a_global_index_is_found_in_the_part_that_holds_it() {
    let of =
        |rank| Shard::of(&ty("f32[{a: 4, b: 8}/tp, 2]"), &mesh(&[("tp", 2)]), rank, &SymValues::default()).unwrap();
    let places = |rank: u64| -> Vec<Option<u64>> { (0..13).map(|at| of(rank).place(0, at)).collect() };
    let held = |ranges: [std::ops::Range<u64>; 2]| -> Vec<Option<u64>> {
        let all: Vec<u64> = ranges.into_iter().flatten().collect();
        (0..13).map(|at| all.iter().position(|x| *x == at).map(|p| p as u64)).collect()
    };
    assert_eq!(places(0), held([0..2, 4..8]));
    assert_eq!(places(1), held([2..4, 8..12]));
    assert_eq!(of(0).place(1, 1), Some(1));
    assert_eq!(of(0).place(2, 0), None);
}

#[test]
fn joined_dims_are_cut_piece_by_piece() {
    let t = "f32[{gate: 4, up: 4}/tp, 2]";
    assert_eq!(slices(t, &[("tp", 2)]), [[run(0, 16, 2, 32)], [run(16, 16, 2, 32)]]);
    let t = "f32[{gate: 4, up: 2}/tp, 2]";
    assert_eq!(slices(t, &[("tp", 2)])[1], [run(16, 16, 1, 16), run(40, 8, 1, 8)]);
    let shard = Shard::of(&ty(t), &mesh(&[("tp", 2)]), 1, &SymValues::default()).unwrap();
    assert_eq!(shard.ranges[0], [2..4, 5..6]);
    assert_eq!(shard.ranges[1].as_slice(), std::slice::from_ref(&(0..2)));
    assert_eq!((shard.shape(), shard.bytes()), (vec![3, 2], 24));
}

#[test]
fn uneven_parts_go_by_the_granule_and_earlier_ranks_get_more() {
    let shapes = |t: &str, n: u64| -> Vec<Vec<u64>> {
        let of = |r| Shard::of(&ty(t), &mesh(&[("tp", n)]), r, &SymValues::default()).unwrap().shape();
        (0..n).map(of).collect()
    };
    assert_eq!(shapes("f32[7/tp, 2]", 3), [[3, 2], [2, 2], [2, 2]]);
    assert_eq!(shapes("q4_K[2, 768/tp:256] rows", 2), [[2, 512], [2, 256]]);
    // What meets it is cut alike, whatever its own blocks are.
    assert_eq!(shapes("f32[2, 768/tp:256]", 2), [[2, 512], [2, 256]]);
    assert_eq!(shapes("f32[10/tp:4]", 2), [[8], [2]]);
    // Fewer units than ranks: the last ranks hold nothing.
    assert_eq!(shapes("f32[3/tp, 2]", 4), [[1, 2], [1, 2], [1, 2], [0, 2]]);
    assert_eq!(shapes("q4_K[2, 256/tp:256] rows", 2), [[2, 256], [2, 0]]);
    assert_eq!(shapes("q4_K[6/tp, 256] rows", 4), [[2, 256], [2, 256], [1, 256], [1, 256]]);
    let bounds = SymValues::default().with("S", 5);
    assert_eq!(largest_bytes(&ty("f32[S/tp, 2]"), &mesh(&[("tp", 2)]), &bounds), Ok(24));
}

#[test]
fn each_refusal_has_its_code() {
    let cases: &[Case] = &[
        ("shard-axis", "f32[4/ep, 4]", &[("tp", 2)]),
        ("shard-axis", "f32[4/tp, 4/tp]", &[("tp", 2)]),
        ("shard-axis", "f32[4]", &[("tp", 0)]),
        ("shard-type", "f32[S]", &[]),
        ("shard-type", "q8_0[31] rows", &[]),
        ("shard-type", "f32[4294967296, 4294967296, 2]", &[]),
        ("split-unit", "f32[3/tp:0]", &[("tp", 4)]),
        ("shard-cuts-block", "q4_K[2, 768/tp] rows", &[("tp", 2)]),
        ("shard-cuts-block", "q4_K[4, 2048/tp] rows", &[("tp", 16)]),
        ("shard-cuts-block", "q8_0[4, {a: 32, b: 64}/tp] rows", &[("tp", 2)]),
    ];
    let mut text = String::new();
    for (code, t, axes) in cases {
        let span = Span { part: 0, offset: 0, bytes: 16 };
        let d = recipe_slices(&ty(t), &mesh(axes), span).unwrap_err();
        assert_eq!(d.code, *code, "{d}");
        text += &format!("{d}\n\n");
    }
    let wrong = recipe_slices(&ty("f32[4]"), &mesh(&[]), Span { part: 0, offset: 0, bytes: 12 }).unwrap_err();
    assert_eq!(wrong.code, "shard-type");
    assert!(CODES.iter().all(|(c, _)| cases.iter().any(|(case, ..)| case == c)));
    assert_eq!(rank_count(&mesh(&[("a", u64::MAX), ("b", 2)])), None);
    insta::assert_snapshot!(text);
}

/// A type of small dims, split at random over two axes, in units of one or two granules.
fn split_type() -> impl Strategy<Value = (TensorType, Mesh)> {
    let dim = (1u64..4, 0u64..5, any::<bool>(), 1u64..4);
    let elems = prop::sample::select(vec!["f32", "bf16", "q8_0", "q4_0", "nvfp4"]);
    (prop::collection::vec(dim, 1..5), elems, 1u64..4, 1u64..4, 0usize..5, 0usize..5).prop_map(
        |(dims, elem, tp, ep, at_tp, at_ep)| {
            let elem = Elem::from_name(elem).unwrap();
            let last = dims.len() - 1;
            let dims = dims.iter().enumerate().map(|(i, (n, more, joined, parts))| {
                let axis = if i == at_tp { Some("tp") } else { (i == at_ep).then_some("ep") };
                let least = match axis {
                    Some("tp") => tp,
                    Some(_) => ep,
                    None => 1,
                };
                let unit = if i == last { elem.block().0 } else { 1 };
                let size = |k: u64| (n.max(&least) + more * (k % 2)) * unit;
                let extent = if *joined {
                    Extent::Joined((0..*parts).map(|k| (format!("p{k}").as_str().into(), size(k))).collect())
                } else {
                    Extent::Const(size(1))
                };
                // Every second split is in units of two granules.
                let split = axis.map(|a| Split::new(a, unit * (1 + more % 2)));
                Dim { extent, split }
            });
            (TensorType::new(elem, dims), mesh(&[("tp", tp), ("ep", ep)]))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Ranks that differ only along axes the tensor is not split over hold the same; one of each partitions the tensor.
    #[test]
    fn ranks_partition_the_tensor((t, mesh) in split_type()) {
        let none = SymValues::default();
        let ranks = rank_count(&mesh).unwrap();
        let block = t.elem.block();
        let span = Span { part: 3, offset: 77, bytes: t.bytes(&none).unwrap() };
        let shape = t.shape(&none).unwrap();
        let all = recipe_slices(&t, &mesh, span).unwrap();
        prop_assert_eq!(all.len() as u64, ranks);
        let mut owners = vec![0u64; (span.bytes / block.1) as usize];
        for (rank, slices) in all.iter().enumerate() {
            let shard = Shard::of(&t, &mesh, rank as u64, &none).unwrap();
            prop_assert_eq!(slices.iter().map(|s| s.bytes * s.count).sum::<u64>(), shard.bytes());
            prop_assert!(shard.bytes() <= largest_bytes(&t, &mesh, &none).unwrap());
            for s in slices {
                prop_assert!(s.count > 1 || s.stride == s.bytes);
                prop_assert!(s.count >= 1 && s.bytes > 0 && s.part == 3);
            }
            for (d, n) in shard.ranges.iter().zip(&shape) {
                prop_assert!(d.windows(2).all(|w| w[0].end <= w[1].start) && d.iter().all(|r| r.end <= *n));
            }
            // The blocks of the ranges in row-major order are the slices, byte for byte.
            let mut at = slices.iter().flat_map(|s| {
                (0..s.count).flat_map(move |i| (0..s.bytes / block.1).map(move |b| s.offset + i * s.stride + b * block.1))
            });
            let mut local = vec![0u64];
            for (i, (ranges, n)) in shard.ranges.iter().zip(&shape).enumerate() {
                let unit = if i + 1 == shape.len() { block.0 } else { 1 };
                local = local
                    .iter()
                    .flat_map(|base| {
                        ranges.iter().flat_map(move |r| (r.start / unit..r.end / unit).map(move |x| base * (n / unit) + x))
                    })
                    .collect();
            }
            for index in local {
                prop_assert_eq!(at.next(), Some(77 + index * block.1));
                owners[index as usize] += 1;
            }
            prop_assert_eq!(at.next(), None);
        }
        let used: u64 = t.dims.iter().filter_map(Dim::axis).map(|a| mesh[a]).product();
        prop_assert!(owners.iter().all(|n| *n == ranks / used), "{} {:?} {:?}", t, mesh, owners);
    }

    /// Slices are as few as runs at equal distances can be: no two neighbours could be one.
    #[test]
    fn neighbours_cannot_be_joined((t, mesh) in split_type()) {
        let span = Span { part: 0, offset: 0, bytes: t.bytes(&SymValues::default()).unwrap() };
        for slices in recipe_slices(&t, &mesh, span).unwrap() {
            for w in slices.windows(2) {
                let (a, b) = (w[0], w[1]);
                let adjacent = a.count == 1 && b.count == 1 && a.offset + a.bytes == b.offset;
                let follows = a.count > 1 && a.bytes == b.bytes && b.offset == a.offset + a.count * a.stride
                    && (b.count == 1 || b.stride == a.stride);
                prop_assert!(!adjacent && !follows, "{} {:?}", t, w);
            }
        }
    }
}
