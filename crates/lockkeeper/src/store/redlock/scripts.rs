//! The scripts, and what the nodes keep.

use super::answers::{self, Shown};
use crate::store::StoreResult;
use redis::{Script, Value};
use std::sync::LazyLock;

/// What the nodes keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    /// A ticket with its fence.
    Fenced,
    /// A plain string that other libraries understand.
    Plain,
}

/// One script for each operation, with the same keys and arguments in both flavours.
pub(super) struct Scripts {
    pub(super) enter: Script,
    pub(super) renew: Script,
    pub(super) leave: Script,
    pub(super) evict: Script,
    pub(super) show: Script,
    /// Reads the answer of `show`.
    pub(super) shown: fn(Value) -> StoreResult<Option<Shown>>,
    /// Only tickets with a fence have a note that can change.
    pub(super) edit: Option<Script>,
}

impl Scripts {
    /// Those of a flavour, read once.
    pub(super) fn of(flavour: Flavour) -> &'static Self {
        match flavour {
            Flavour::Fenced => &FENCED,
            Flavour::Plain => &PLAIN_CAPACITY,
        }
    }
}

static FENCED: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    enter: Script::new(include_str!("enter.lua")),
    renew: Script::new(include_str!("renew.lua")),
    leave: Script::new(include_str!("leave.lua")),
    evict: Script::new(include_str!("evict.lua")),
    show: Script::new(include_str!("show.lua")),
    shown: answers::shown,
    edit: Some(Script::new(include_str!("edit.lua"))),
});

static PLAIN_CAPACITY: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    enter: Script::new(include_str!("string/enter.lua")),
    renew: Script::new(include_str!("string/renew.lua")),
    leave: Script::new(include_str!("string/leave.lua")),
    evict: Script::new(include_str!("string/evict.lua")),
    show: Script::new(include_str!("string/show.lua")),
    shown: answers::shown_plain,
    edit: None,
});
