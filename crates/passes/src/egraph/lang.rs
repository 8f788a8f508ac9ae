//! Owns the e-nodes: any op of the table with its attributes, a projection of a tuple, or a leaf. Nothing here matches
//! on a single op: what the table gains, the language has.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use egg::{Id, Language};
use glmc_ir::op::Op;

/// An op with its attributes, compared by its text.
#[derive(Clone, Debug)]
pub struct Key {
    text: Arc<str>,
    /// The op.
    pub op: Arc<Op>,
}

impl Key {
    /// The key of `op`.
    pub fn new(op: impl Into<Op>) -> Self {
        let op = op.into();
        let text = format!("{} {}", op.name(), serde_json::Value::Object(op.attrs()));
        Key { text: text.into(), op: Arc::new(op) }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
impl Eq for Key {}
impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}
impl Hash for Key {
    fn hash<H: Hasher>(&self, h: &mut H) {
        self.text.hash(h);
    }
}

/// What an e-node is, without its operands.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Head {
    /// A parameter, a weight, or a result of an instruction of the skeleton; an index into the leaves.
    Leaf(u32),
    /// An op. One with several results has a tuple type.
    Op(Key),
    /// One result of a tuple.
    Get(u32),
}

/// An e-node.
#[derive(Clone, Debug)]
pub struct ENode {
    /// What it is.
    pub head: Head,
    /// Its operands.
    pub args: Vec<Id>,
    /// The rule that made it; empty for what the function held. Takes no part in comparisons.
    pub rule: &'static str,
    /// The application that made it, in the e-graph's history; 0 for what the function held. No part in comparisons.
    pub line: u32,
}

impl ENode {
    /// A node that no rule made.
    pub fn new(head: Head, args: Vec<Id>) -> Self {
        ENode { head, args, rule: "", line: 0 }
    }

    /// The op, if it is one.
    pub fn op(&self) -> Option<&Op> {
        match &self.head {
            Head::Op(k) => Some(&k.op),
            _ => None,
        }
    }

    fn key(&self) -> (&Head, &[Id]) {
        (&self.head, &self.args)
    }
}

impl PartialEq for ENode {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for ENode {}
impl PartialOrd for ENode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for ENode {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}
impl Hash for ENode {
    fn hash<H: Hasher>(&self, h: &mut H) {
        self.key().hash(h);
    }
}

impl Language for ENode {
    type Discriminant = Head;

    fn discriminant(&self) -> Head {
        self.head.clone()
    }

    fn matches(&self, other: &Self) -> bool {
        self.head == other.head && self.args.len() == other.args.len()
    }

    fn children(&self) -> &[Id] {
        &self.args
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.args
    }
}
