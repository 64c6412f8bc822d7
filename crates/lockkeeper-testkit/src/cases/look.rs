//! What people see: who holds what, and who waits.

use crate::{
    case::{Case, Verdict, cases},
    raw_session::{LONG, RawSession},
    world::{World, eventually, line},
};
use lockkeeper::{
    Keeper, Mode, Name, Owner, Store as _,
    store::{LIST_MAX, ListScope, PLAIN_CAPACITY},
};
use std::time::Duration;

pub(crate) fn cases() -> Vec<Case> {
    cases!("look":
        [] a_prefix_selects_by_bytes, an_exact_name_selects_one_line, it_goes_beyond_one_page,
            a_line_shows_each_owner_and_for_how_long, a_secret_is_shown_nowhere, looking_changes_nothing,
            the_dead_are_not_shown, a_watch_tells_what_has_changed;
        [Fair] holders_are_listed_before_waiters;
    )
}

async fn names(keeper: &Keeper, prefix: &str) -> Vec<String> {
    let lines = keeper.list(prefix).await.expect("a look");
    lines.into_iter().map(|line| line.name.to_string()).collect()
}

/// In the order of their bytes, and nothing in a prefix is special.
async fn a_prefix_selects_by_bytes(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let mut guards = Vec::new();
    for name in
        ["a/2", "a/10", "a/1", "a", "A/1", "a%", "a%/1", "a_", "b", "ä", "aé", "a\u{10ffff}"]
    {
        guards.push(keeper.lock(name).try_now().await?.expect("free"));
    }
    assert_eq!(names(&keeper, "a/").await, ["a/1", "a/10", "a/2"]);
    assert_eq!(names(&keeper, "a%").await, ["a%", "a%/1"]);
    assert_eq!(names(&keeper, "a_").await, ["a_"]);
    assert_eq!(names(&keeper, "A").await, ["A/1"]);
    assert_eq!(names(&keeper, "a\u{10ffff}").await, ["a\u{10ffff}"]);
    assert_eq!(names(&keeper, "c").await, [""; 0]);
    let all = names(&keeper, "").await;
    assert!(all.is_sorted_by(|a, b| a.as_bytes() < b.as_bytes()) && all.len() == guards.len());
    assert_eq!(names(&keeper, "a").await.len(), guards.len() - 3);
    Ok(())
}

/// The line of this name and no other.
async fn an_exact_name_selects_one_line(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let _guards = [keeper.lock("a").try_now().await?, keeper.lock("a/b").try_now().await?];
    let line = keeper.get("a").await?.expect("a line");
    assert_eq!((line.name.as_str(), line.capacity, line.tickets.len()), ("a", PLAIN_CAPACITY, 1));
    assert!(keeper.get("b").await?.is_none());
    Ok(())
}

/// A store shows so many lines at a time; all of them are seen, each once.
async fn it_goes_beyond_one_page(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    const LINES: usize = LIST_MAX + 500;
    for i in 0..LINES {
        raw.take(&format!("n{i:04}")).await;
    }
    let page = store.list(ListScope::Prefix { prefix: "n".into(), after: None }).await?;
    assert!(page.len() <= LIST_MAX, "{} lines at once", page.len());
    let after = Some(Name::new("n1497")?);
    let rest = store.list(ListScope::Prefix { prefix: "n".into(), after }).await?;
    let rest: Vec<_> = rest.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(rest, ["n1498", "n1499"]);
    let all = names(&Keeper::over(store), "n").await;
    let wanted: Vec<String> = (0..LINES).map(|i| format!("n{i:04}")).collect();
    assert!(all == wanted, "{} of {LINES} lines", all.len());
    Ok(())
}

/// Owner, label, mode, fence and ages.
async fn a_line_shows_each_owner_and_for_how_long(w: World) -> Verdict {
    let owner = Owner::new("ci-7", 4121, "nightly");
    let keeper = w.build(Keeper::builder().ttl(LONG).identity(owner.clone())).await;
    let guard = keeper.lock("a").label("build 7").try_now().await?.expect("free");
    let other = w.keeper().await;
    let pause = Duration::from_millis(30);
    tokio::time::sleep(pause).await;
    let line = other.get("a").await?.expect("a line");
    let ticket = &line.tickets[0];
    assert_eq!(ticket.owner.as_ref(), Some(&owner));
    assert_eq!((ticket.id, ticket.fence), (guard.ticket(), Some(guard.fence())));
    assert_eq!((ticket.mode, ticket.label.as_slice()), (Mode::Exclusive, &b"build 7"[..]));
    // Stores with coarse clocks may round.
    let slack = Duration::from_millis(5);
    assert!(ticket.entered_ago + slack >= pause && ticket.entered_ago < LONG / 2);
    assert_eq!(ticket.granted_ago.is_some(), w.notes_grants());
    assert!(ticket.granted_ago.is_none_or(|ago| ago + slack >= pause));
    assert!(ticket.ends_in <= LONG && ticket.ends_in > LONG / 2);
    guard.set_label("build 8").await?;
    assert_eq!(other.get("a").await?.expect("a line").tickets[0].label, b"build 8");
    Ok(())
}

/// The session's id is its secret. It is in no listing and no debug output.
async fn a_secret_is_shown_nowhere(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    let guard = keeper.lock("a").label("label").try_now().await?.expect("free");
    let secret = faults.sessions()[0].to_bytes();
    let hex: String = secret.iter().map(|b| format!("{b:02x}")).collect();
    let number = u128::from_be_bytes(secret).to_string();
    let list = format!("{secret:?}");
    let native = guard.native();
    let shown = format!(
        "{:?} {:?} {:?} {:?} {} {native:?} {:?}",
        keeper.list("").await?,
        guard,
        keeper,
        keeper.store(),
        guard.sequencer(),
        faults.log(),
    );
    for form in [hex.as_str(), &hex.to_uppercase(), &number, &list, &list[1..list.len() - 1]] {
        assert!(!shown.contains(form), "the secret is in {shown}");
    }
    Ok(())
}

/// Holders first, in the order of their grants; then the waiters, in the order they came.
async fn holders_are_listed_before_waiters(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let held = raw.take("a").await.ticket;
    let mut order = vec![held];
    for _ in 0..3 {
        order.push(raw.queue("a").await.0);
    }
    let line = line(&store, "a").await.expect("a line");
    assert_eq!(line.tickets.iter().map(|t| t.id).collect::<Vec<_>>(), order);
    assert_eq!(line.holders().count(), 1);
    assert_eq!(line.waiters().map(|t| t.id).collect::<Vec<_>>(), order[1..]);
    assert!(line.waiters().all(|t| t.granted_ago.is_none() && t.fence.is_none()));
    Ok(())
}

/// A look is a read: it renews, grants and ends nothing.
async fn looking_changes_nothing(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open_for(&store, w.short(), Duration::ZERO).await;
    let held = raw.take("a").await;
    eventually("it expires although it is looked at again and again", async || {
        line(&store, "a").await.is_none()
    })
    .await;
    assert!(!raw.check(&held).await);
    Ok(())
}

/// What has expired is not listed, although it has not been swept yet.
async fn the_dead_are_not_shown(w: World) -> Verdict {
    let store = w.store().await;
    let silent = RawSession::open_for(&store, w.short(), Duration::ZERO).await;
    for name in ["a", "b"] {
        silent.take(name).await;
    }
    let living = RawSession::open(&store).await;
    living.take("c").await;
    let keeper = Keeper::over(store);
    eventually("only the living are shown", async || names(&keeper, "").await == ["c"]).await;
    Ok(())
}

/// The lines as they are, then again whenever they have changed.
async fn a_watch_tells_what_has_changed(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let mut watch = two.watch("jobs/");
    assert_eq!(watch.next().await?, []);
    let _elsewhere = one.lock("elsewhere").try_now().await?.expect("free");
    let guard = one.lock("jobs/a").label("one").try_now().await?.expect("free");
    let seen = crate::world::soon("the grant is seen", watch.next()).await?;
    assert_eq!(seen[0].tickets[0].fence, Some(guard.fence()));
    guard.set_label("two").await?;
    let seen = crate::world::soon("the note is seen", watch.next()).await?;
    assert_eq!(seen[0].tickets[0].label, b"two");
    guard.release().await?;
    assert_eq!(crate::world::soon("the release is seen", watch.next()).await?, []);
    Ok(())
}
