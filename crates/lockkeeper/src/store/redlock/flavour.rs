//! What the nodes keep for a lock, and the scripts for it.

use super::votes::{self, Shown};
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
    /// Reads the reply of `show`.
    pub(super) shown: fn(Value) -> StoreResult<Option<Shown>>,
    /// Only tickets with a fence have a label that can change.
    pub(super) edit: Option<Script>,
}

impl Flavour {
    pub(super) fn scripts(self) -> &'static Scripts {
        match self {
            Self::Fenced => &FENCED,
            Self::Plain => &PLAIN,
        }
    }
}

macro_rules! scripts {
    ($folder:literal, $shown:expr, $edit:expr) => {
        LazyLock::new(|| Scripts {
            enter: Script::new(include_str!(concat!($folder, "enter.lua"))),
            renew: Script::new(include_str!(concat!($folder, "renew.lua"))),
            leave: Script::new(include_str!(concat!($folder, "leave.lua"))),
            evict: Script::new(include_str!(concat!($folder, "evict.lua"))),
            show: Script::new(include_str!(concat!($folder, "show.lua"))),
            shown: $shown,
            edit: $edit,
        })
    };
}

static FENCED: LazyLock<Scripts> =
    scripts!("", votes::shown, Some(Script::new(include_str!("edit.lua"))));
static PLAIN: LazyLock<Scripts> = scripts!("string/", votes::shown_plain, None);
