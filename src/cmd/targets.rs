//! `glmc targets`: the machines that plans can be made for.

use glmc_passes::target::Target;

use super::{print_json, print_line};
use crate::cli::TargetsArgs;
use crate::error::CliError;

pub(crate) fn run(args: &TargetsArgs) -> Result<(), CliError> {
    let all = Target::shipped();
    if args.json {
        return print_json(&serde_json::json!({ "targets": all }));
    }
    for t in all {
        print_line(&format!("{:<16} {}", t.name, t.description))?;
    }
    Ok(())
}
