//! The CUDA kernels of a plan: from a kernel contract and the types of a launch to a short readable `.cu`, and from
//! there to a cubin (NVRTC) or to a program for this machine's CPU (the host emulation, for tests).
//!
//! Owns device code (`kernels/*.cuh`), how a contract is met (`family`), and compiling. Never owns what a contract
//! means (`ir` does), why it was chosen (`passes`), or a device handle (`runtime`).
//!
//! The way of one launch: [`Request`] -> [`generate`] -> [`Generated`] (source, argument struct, launch shapes) ->
//! [`emit::unit`] (one translation unit of many kernels) -> [`nvrtc::Compiler`] or [`host::Program`].

pub mod arch;
pub mod cases;
pub mod ceiling;
pub mod emit;
pub mod host;
pub mod kernels;
pub mod nvrtc;
pub mod program;
pub mod repack;
pub mod synth;

mod family;
mod request;
mod signature;

pub use arch::Arch;
pub use family::generate;
pub use request::{Activations, GenerateError, Generated, LaunchShape, Options, Request, Storage, Tuning};
pub use signature::{Field, Role, Signature};
