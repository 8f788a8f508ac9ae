//! Owns the typed ids of the IR: dense `u32` newtypes that index `PrimaryMap`s.
//! Never holds data: an id means nothing without the map of its owner (ids beat references: they are `Copy`,
//! serialise as numbers, and cannot dangle into a moved arena). `Display` is the id's text form.

use cranelift_entity::entity_impl;

macro_rules! entity {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $name(u32);
        entity_impl!($name, $prefix);
    };
}

entity!(
    /// An SSA value of one function.
    Value, "v");
entity!(
    /// An instruction of one function.
    Inst, "i");
entity!(
    /// A function of a module.
    FuncId, "f");
entity!(
    /// An entry of a weight table: the module's at graph level, the plan's recipes at plan level.
    WeightId, "w");
entity!(
    /// A persistent cache pool of a plan.
    StateId, "s");
entity!(
    /// A step parameter of a plan phase (written by the host before the phase runs).
    ParamId, "p");
entity!(
    /// A buffer in the arena of a plan phase.
    BufId, "b");
