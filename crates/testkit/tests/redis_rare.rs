//! What happens rarely to a Redis server: data that go back in time, replies that are lost, memory that
//! is full, sessions that nobody renews or that several handles act for.

use lockkeeper::{
    Keeper, Mode, Name, Store as _, TicketId, Trouble,
    store::{Entered, Manner, Renewal, Stand},
};
use redis::{FromRedisValue, Value};
use servers::{Recipe, Require, Running};
use testkit::{Hand, LONG};

/// A running server, or nothing if it cannot be had and nobody insists.
fn start(recipe: Recipe) -> Option<Running> {
    if let Some(missing) = recipe.first_missing() {
        let must = Require::from_env().wants(recipe.name);
        assert!(!must, "{missing} is not installed, and {} asks for it", Require::VARIABLE);
        eprintln!("ignored: {missing} is not installed");
        return None;
    }
    Some(recipe.start().expect("the server starts"))
}

async fn keeper(url: &str) -> Keeper {
    Keeper::connect(url).await.expect("the server answers")
}

/// A client beside the library, to see what it did and to meddle.
struct Witness(redis::aio::MultiplexedConnection);

impl Witness {
    async fn of(port: u16) -> Self {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("a URL");
        Self(client.get_multiplexed_async_connection().await.expect("the server answers"))
    }

    async fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut self.0).await.expect("an answer")
    }
}

/// A lock that is kept closed after its release is not opened by a late copy of its enter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_copy_of_an_enter_does_not_undo_a_hold() {
    let Some(server) = start(servers::REDIS) else { return };
    let keeper = keeper(server.url()).await;
    let hand = Hand::open(keeper.store()).await;
    let claim = hand.take("a").await;
    hand.leave_as("a", claim.ticket, Some(LONG), true).await;
    let late = hand.enter("a", claim.ticket, Mode::Exclusive, Manner::Queue).await;
    assert_eq!(late.expect_err("it was left").trouble, Trouble::TicketClosed);
    assert_eq!(hand.stand("a", claim.ticket).await, Stand::Gone);
    let line = keeper.look_at("a").await.expect("a look").expect("it is kept closed");
    assert!(line.tickets.len() == 1 && line.tickets[0].owner.is_none());
}

/// Ticket ids are public, so nobody gets anything by knowing one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anothers_ticket_id_gives_no_rights() {
    let Some(server) = start(servers::REDIS) else { return };
    let keeper = keeper(server.url()).await;
    let (owner, other) = (Hand::open(keeper.store()).await, Hand::open(keeper.store()).await);
    let claim = owner.take("a").await;
    for manner in [Manner::Queue, Manner::Contend] {
        let entered = other.enter("a", claim.ticket, Mode::Exclusive, manner).await;
        assert!(!matches!(entered, Ok(Entered::Granted { .. })), "{entered:?}");
    }
    other.leave_as("a", claim.ticket, None, true).await;
    assert!(owner.check(&claim).await);
    assert_eq!(keeper.look_at("a").await.expect("a look").expect("held").tickets.len(), 1);
}

/// A server that is full of other things refuses new locks and keeps the old ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_keeps_its_locks() {
    let Some(server) = start(servers::REDIS) else { return };
    let (keeper, mut witness) = (keeper(server.url()).await, Witness::of(server.ports()[0]).await);
    let hand = Hand::open(keeper.store()).await;
    let claim = hand.take("a").await;
    witness.ask::<Value>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = hand.enter("b", TicketId::random(), Mode::Exclusive, Manner::Queue).await;
    assert_eq!(refused.expect_err("the server is full").trouble, Trouble::Unavailable);
    assert!(matches!(hand.store.renew(hand.session).await, Ok(Renewal::Renewed { .. })));
    assert!(hand.check(&claim).await);
    hand.leave("a", claim.ticket).await;
    assert!(!hand.check(&claim).await);
}

/// session is believed in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_lock_that_is_found_made_lives_as_long_as_a_new_one() {
    let Some(server) = start(servers::REDIS) else { return };
    let mut witness = Witness::of(server.ports()[0]).await;
    let keeper = keeper(&format!("{}?compat=string", server.url())).await;
    let (hand, ticket) = (Hand::open(keeper.store()).await, TicketId::random());
    let session = u128::from_be_bytes(hand.session.to_bytes());
    witness.ask::<Value>(&["SET", "a", &format!("{ticket}.{session:032x}"), "PX", "1000"]).await;
    let entered = hand.enter("a", ticket, Mode::Exclusive, Manner::Contend).await;
    assert!(matches!(entered, Ok(Entered::Granted { .. })), "{entered:?}");
    let left: u64 = witness.ask(&["PTTL", "a"]).await;
    assert!(left > 60_000, "the lock is believed in for {LONG:?} and has {left} ms");
    assert!(hand.all().await.iter().any(|(name, ..)| *name == Name::new("a").expect("a name")));
}
