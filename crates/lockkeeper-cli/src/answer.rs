//! How the verbs that ask a question answer: words or JSON on stdout, and an exit code.

use crate::{
    cli::Common,
    event::held_words,
    exit_code,
    failure::Failure,
    output::{self, printable},
    run::End,
    store,
};
use lockkeeper::{Keeper, Ticket};
use serde::Serialize;

/// The store that was named.
pub(crate) async fn connect(common: &Common) -> Result<Keeper, Failure> {
    Ok(Keeper::connect(&store::url(common.store.as_deref())?).await?)
}

/// The code of a question that is answered with yes or no.
pub(crate) fn code(yes: bool) -> u8 {
    if yes { 0 } else { exit_code::NO }
}

/// Prints the answer, unless only the code is wanted (`-q`): an object with `--json`, or else these words.
pub(crate) fn give(
    common: &Common,
    json: impl Serialize,
    words: &str,
    code: u8,
) -> Result<End, Failure> {
    let text = match (common.quiet, common.json) {
        (true, _) => String::new(),
        (_, true) => output::json_answer(json).map_err(Failure::bug)?,
        _ if words.is_empty() => String::new(),
        _ => format!("{words}\n"),
    };
    Ok(end(&text, code))
}

/// Prints this, and ends with this code if that was possible.
pub(crate) fn end(text: &str, code: u8) -> End {
    match output::answer(text) {
        0 => End::Code(code),
        failed => End::Code(failed),
    }
}

/// Who holds the lock, in words: "held by ci-7 (pid 4121) for 42 s and by 2 more".
pub(crate) fn holders_words<'a>(mut holders: impl Iterator<Item = &'a Ticket>) -> Option<String> {
    let first = held_words(holders.next()?);
    Some(match holders.count() {
        0 => first,
        more => format!("{first} and by {more} more"),
    })
}

/// A lock's name, or another text of the user's, in a sentence.
pub(crate) fn quoted(text: &str) -> String {
    format!("`{}`", printable(text))
}
