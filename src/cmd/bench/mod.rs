//! `glmc bench`: a plan's speed against the machine's, whole, by class and kernel by kernel; with `--kernels` the matrices
//! of a decode step without a plan.

mod bytes;
mod classes;
mod cpu;
mod cuda;
mod items;
mod kernels;
mod machine;
mod measured;
mod pace;
mod plan;
mod probe;
mod report;
mod session;
mod short;
mod trace;

use crate::cli::BenchArgs;
use crate::error::CliError;

pub(crate) fn run(args: &BenchArgs) -> Result<(), CliError> {
    if args.kernels { kernels::run(args) } else { plan::run(args) }
}
