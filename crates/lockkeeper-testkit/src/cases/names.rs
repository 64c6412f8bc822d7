//! Different names are different locks, whatever a store does with text.

use crate::{
    case::{Case, Verdict, cases},
    raw_session::RawSession,
    world::{World, tickets},
};
use lockkeeper::{Error, Keeper, NAME_MAX, NameError, Sequencer};
use std::collections::HashSet;

pub(crate) fn cases() -> Vec<Case> {
    cases!("names":
        [] names_never_collide, names_come_back_as_they_were_given, names_that_are_none_are_refused,
            a_sequencer_carries_any_name;
    )
}

/// Names that some store, collation, path or pattern might take for one another, between bars.
const TRICKY: &[&str] = &[
    // Case, blanks, and what collations fold.
    "a|A|a | a|a  |ß|ss|SS|İ|i|I|ı|\u{ff41}|\u{a0}a",
    // Composed and decomposed, look-alikes, invisible characters.
    "\u{e9}|e\u{301}|\u{430}|o|\u{43e}|0|a\u{200b}|a\u{ad}|\u{feff}a|\u{c5}|\u{212b}|A\u{30a}",
    // Paths and their dots.
    "/|//|a/|/a|a/b|a//b|a/b/|.|..|a/..|../a|a/./b|a\\b",
    // Patterns, tags, quotes and escapes of stores.
    "%|_|*|?|a%|a%20|a+b|a b|a%2Fb|{a}|{}|}{|{a|a:b|'|''|\"|`|';--|$1|?1|\\|\\0|\\x00|[a]|(a)|a;b",
    // What might be taken for something else than text.
    "null|NULL|true|0x61|1|01|1.0|-1",
    // Beyond the basic plane.
    "🔒|🔒🔒|👩\u{200d}👧|\u{10ffff}|中文|日本|\u{1d482}",
];

fn tricky() -> Vec<String> {
    let mut names: Vec<String> =
        TRICKY.iter().flat_map(|names| names.split('|')).map(String::from).collect();
    // As long as can be, and different only at the end; and in multi-byte characters.
    let long = "x".repeat(NAME_MAX - 1);
    names.extend([format!("{long}a"), format!("{long}b"), long]);
    names.extend(["🔒".repeat(NAME_MAX / 4), "🔒".repeat(NAME_MAX / 4 - 1)]);
    names
}

/// I3: all of them are held at the same time by one keeper, and each excludes only itself.
async fn names_never_collide(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let names = tricky();
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    let mut guards = Vec::new();
    for name in &names {
        let guard = one.lock(name).try_now().await?;
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} collides with another name")));
    }
    for name in &names {
        assert!(two.lock(name).try_now().await?.is_none(), "{name:?} is held");
    }
    for (name, guard) in names.iter().zip(guards) {
        guard.release().await?;
        let again = two.lock(name).try_now().await?;
        again.unwrap_or_else(|| panic!("{name:?} was released")).release().await?;
    }
    assert_eq!(tickets(two.store()).await, 0);
    Ok(())
}

/// Listings and polls show names as they were given, byte by byte.
async fn names_come_back_as_they_were_given(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let mut names = tricky();
    for name in &names {
        raw.take(name).await;
    }
    names.sort_unstable();
    let lines = Keeper::over(store).list("").await?;
    let seen: Vec<_> = lines.iter().map(|line| line.name.to_string()).collect();
    assert_eq!(seen, names);
    let mut polled: Vec<_> =
        raw.all().await.into_iter().map(|(name, ..)| name.to_string()).collect();
    polled.sort_unstable();
    assert_eq!(polled, names);
    Ok(())
}

/// Refused before anything is sent, and said why.
async fn names_that_are_none_are_refused(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    for bad in ["", "a\0", "a\n", "\u{7f}", "\u{85}", &"x".repeat(NAME_MAX + 1)] {
        let refused = keeper.lock(bad).try_now().await;
        assert!(matches!(refused, Err(Error::Name(_))), "{bad:?}: {refused:?}");
        assert!(matches!(keeper.read(bad).await, Err(Error::Name(_))));
    }
    let empty = keeper.lock("").try_now().await;
    assert!(matches!(empty, Err(Error::Name(NameError::Empty))));
    assert_eq!(faults.log(), []);
    Ok(())
}

/// I13: through text and back, and checked by another keeper.
async fn a_sequencer_carries_any_name(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    for name in tricky() {
        let guard = one.lock(&name).try_now().await?.expect("free");
        let text = guard.sequencer().to_string();
        assert!(text.bytes().all(|b| b.is_ascii_graphic()), "{text}");
        let back: Sequencer = text.parse()?;
        assert_eq!((back.name(), back.fence()), (guard.name(), guard.fence()));
        assert!(two.check(&back).await?, "{name:?} is held");
        guard.release().await?;
        assert!(!two.check(&back).await?, "{name:?} is not held");
    }
    Ok(())
}
