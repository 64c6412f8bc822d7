//! Many readers or one writer.

use crate::{
    case::{Case, Verdict, cases},
    raw_session::RawSession,
    register::Room,
    world::{World, length, soon, until_length},
};
use lockkeeper::{
    Error, Mode,
    store::{Entered, PLAIN_CAPACITY},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::sync::Arc;
use tokio::task::JoinSet;

pub(crate) fn cases() -> Vec<Case> {
    cases!("rw":
        [Shared] readers_hold_it_together, a_writer_is_alone, a_read_is_not_a_licence_to_write,
            a_lock_is_a_write, an_owner_with_the_write_lock_may_read,
            a_read_cannot_become_a_write;
        [Shared, Fair] readers_and_writers_never_meet, a_waiting_writer_is_not_starved,
            readers_behind_a_writer_go_together;
    )
}

/// I3: readers do not exclude each other.
async fn readers_hold_it_together(w: World) -> Verdict {
    let keepers = [w.keeper().await, w.keeper().await];
    let mut guards = Vec::new();
    for i in 0..10 {
        let reader = keepers[i % 2].rwlock("a").read().try_now().await?;
        guards.push(reader.expect("readers go together"));
    }
    assert_eq!(length(keepers[0].store(), "a").await, 10);
    assert!(guards.iter().all(|guard| guard.mode() == Mode::Shared && guard.is_held()));
    Ok(())
}

/// I3: a writer excludes readers and writers, and readers exclude a writer.
async fn a_writer_is_alone(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let writer = one.rwlock("a").write().try_now().await?.expect("free");
    assert!(two.rwlock("a").read().try_now().await?.is_none());
    assert!(two.rwlock("a").write().try_now().await?.is_none());
    writer.release().await?;
    let reader = one.rwlock("a").read().try_now().await?.expect("free");
    assert!(two.rwlock("a").write().try_now().await?.is_none());
    reader.release().await?;
    assert!(two.rwlock("a").write().try_now().await?.is_some());
    Ok(())
}

/// A reader is in no position to write the name's cell.
async fn a_read_is_not_a_licence_to_write(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let reader = keeper.rwlock("a").read().try_now().await?.expect("free");
    let refused = reader.write(b"mine".to_vec()).await;
    assert!(matches!(refused, Err(Error::Option(_))), "{refused:?}");
    assert_eq!(keeper.read("a").await?, None);
    Ok(())
}

/// `lock` and `rwlock().write()` are the same line, in both directions.
async fn a_lock_is_a_write(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let lock = one.lock("a").try_now().await?.expect("free");
    assert_eq!(lock.mode(), Mode::Exclusive);
    assert!(two.rwlock("a").write().try_now().await?.is_none());
    assert!(two.rwlock("a").read().try_now().await?.is_none());
    lock.release().await?;
    let reader = two.rwlock("a").read().try_now().await?.expect("free");
    assert!(one.lock("a").try_now().await?.is_none());
    reader.release().await?;
    Ok(())
}

/// I9: what an owner holds covers a weaker wish: one ticket, one fence.
async fn an_owner_with_the_write_lock_may_read(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let writer = keeper.rwlock("a").write().reentrant_as("me").try_now().await?.expect("free");
    let reader = keeper.rwlock("a").read().reentrant_as("me").try_now().await?.expect("covered");
    assert_eq!((writer.ticket(), writer.holds()), (reader.ticket(), 2));
    assert_eq!(length(keeper.store(), "a").await, 1);
    Ok(())
}

/// An owner that reads and wants to write would wait for itself: an error, said at once.
async fn a_read_cannot_become_a_write(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let reader = keeper.rwlock("a").read().reentrant_as("me").try_now().await?.expect("free");
    for upgrade in [keeper.lock("a"), keeper.rwlock("a").write()] {
        let refused = soon("the refusal", upgrade.reentrant_as("me").try_now()).await;
        assert!(matches!(refused, Err(Error::Upgrade { .. })), "{refused:?}");
    }
    assert_eq!(length(keeper.store(), "a").await, 1);
    assert!(reader.is_held());
    Ok(())
}

/// I3: many of both at random, over two keepers.
async fn readers_and_writers_never_meet(w: World) -> Verdict {
    let keepers = [w.keeper().await, w.keeper().await];
    let room = Arc::new(Room::outage(PLAIN_CAPACITY));
    let mut tasks = JoinSet::new();
    for seed in 0..8 {
        let (keeper, room) = (keepers[seed % 2].rwlock("a"), room.clone());
        let mut rng = StdRng::seed_from_u64(seed as u64);
        tasks.spawn(async move {
            for _ in 0..25 {
                let writes = rng.random_bool(0.3);
                let guard = if writes { keeper.write().await? } else { keeper.read().await? };
                room.visit(guard.mode().weight()).await;
                guard.release().await?;
            }
            anyhow::Ok(())
        });
    }
    for done in tasks.join_all().await {
        done?;
    }
    Ok(())
}

/// I6: readers who come after a waiting writer wait too, so its turn comes.
async fn a_waiting_writer_is_not_starved(w: World) -> Verdict {
    let keepers = [w.keeper().await, w.keeper().await, w.keeper().await];
    let first = keepers[0].rwlock("a").read().await?;
    let writer = keepers[1].rwlock("a").write();
    let writer = tokio::spawn(async move { writer.await });
    until_length(keepers[0].store(), "a", 2).await;
    assert!(keepers[2].rwlock("a").read().try_now().await?.is_none(), "a writer waits");
    let late = keepers[2].rwlock("a").read();
    let late = tokio::spawn(async move { late.await });
    until_length(keepers[0].store(), "a", 3).await;
    first.release().await?;
    let writer = soon("the writer's turn", writer).await??;
    assert!(!late.is_finished(), "the reader came later");
    writer.release().await?;
    soon("the reader's turn", late).await??.release().await?;
    Ok(())
}

/// I6: once the writer is done, all readers behind it go at the same time.
async fn readers_behind_a_writer_go_together(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let writer = raw.take("a").await;
    let mut readers = Vec::new();
    for _ in 0..3 {
        let (reader, entered) = raw.queue_for("a", Mode::Shared).await;
        assert!(matches!(entered, Entered::Queued(_)));
        readers.push(reader);
    }
    let (next, _) = raw.queue("a").await;
    raw.leave("a", writer.ticket).await;
    for reader in readers {
        let stand = raw.stand("a", reader).await;
        assert!(matches!(stand, lockkeeper::store::TicketStatus::Granted { .. }), "{stand:?}");
    }
    let stand = raw.stand("a", next).await;
    assert!(matches!(stand, lockkeeper::store::TicketStatus::Waiting(wait) if wait.ahead == 3));
    Ok(())
}
