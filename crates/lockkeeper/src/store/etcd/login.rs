//! Who we are to the servers: the user's name and password, and the token that they gave for it.

use crate::sync::Mutex;
use tonic::metadata::{Ascii, MetadataValue};

/// Who we are, if the servers want to know.
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
}

pub(super) struct Login {
    pub(super) credentials: Option<Credentials>,
    present: Mutex<Present>,
    /// One at a time asks for a token: it costs the server a good part of a second.
    pub(super) door: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Present {
    token: Option<MetadataValue<Ascii>>,
    /// How often a token was asked for.
    asked: u64,
}

impl Login {
    pub(super) fn new(credentials: Option<Credentials>) -> Self {
        Self { credentials, present: Mutex::default(), door: tokio::sync::Mutex::default() }
    }

    fn present(&self) -> std::sync::MutexGuard<'_, Present> {
        self.present.lock()
    }

    pub(super) fn is_needed(&self) -> bool {
        self.credentials.is_some()
    }

    pub(super) fn token(&self) -> Option<MetadataValue<Ascii>> {
        self.credentials.as_ref()?;
        self.present().token.clone()
    }

    /// How often a token was asked for. A request that was refused its token asks for another one only
    /// if nobody has asked since the request was sent.
    pub(super) fn asked(&self) -> u64 {
        if self.credentials.is_none() { 0 } else { self.present().asked }
    }

    /// A token was asked for; if none came the old one stays.
    pub(super) fn answered(&self, token: Option<MetadataValue<Ascii>>) {
        let mut present = self.present();
        present.asked += 1;
        if let Some(mut token) = token {
            token.set_sensitive(true);
            present.token = Some(token);
        }
    }
}
