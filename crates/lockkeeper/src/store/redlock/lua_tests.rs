//! The scripts on a real server, held to the model.

use super::{
    Redlock,
    decide::Vote,
    flavour::Flavour,
    handshake::{Agreement, BOOT, WAIVE},
    model::Node,
    nodes::{Nodes, PATIENCE},
    votes,
};
use crate::{
    clock::Moment,
    model::{
        name::Name,
        ticket::{Owner, Place, SessionId, TicketId},
    },
    store::{
        Open, StoreId,
        redis::{Call, Connection, micros},
    },
};
use rand::{RngExt as _, SeedableRng, rngs::StdRng};
use servers::{REDIS, Require, Running};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(30);

/// One node, three tickets of three sessions, and one name.
struct Rig {
    _server: Running,
    store: Redlock,
    name: Name,
    places: Vec<Place>,
}

impl Rig {
    /// `None` if no server is installed, and none is required.
    async fn new() -> Option<Self> {
        if let Some(missing) = REDIS.first_missing() {
            assert!(!Require::from_env().wants(REDIS.name), "{missing} is not installed");
            return None;
        }
        let server = REDIS.start().expect("a server");
        let url = format!("redis://127.0.0.1:{}/?protocol=resp3", server.ports()[0]);
        let connection = Connection::to_node(redis::Client::open(url).expect("a URL"), None);
        connection.query::<()>(redis::cmd("SET").arg(BOOT).arg(0)).await.expect("no quarantine");
        let (prefix, max) = ("lk".to_owned(), Duration::from_secs(60));
        let agreement = Agreement::new("lk:rl-max-ttl".into(), micros(max), 1);
        let nodes = Nodes::new("redlock", vec![connection], Some(agreement));
        let store = Redlock::new(StoreId([0; 8]), nodes, prefix, Flavour::Fenced, max);
        let name = Name::new("a").expect("a name");
        let mut rig = Self { _server: server, store, name, places: Vec::new() };
        rig.renew_places();
        Some(rig)
    }

    /// New tickets, none of them closed.
    fn renew_places(&mut self) {
        let place = |_| Place {
            session: SessionId::random(),
            name: self.name.clone(),
            ticket: TicketId::random(),
        };
        self.places = (0..3).map(place).collect();
    }

    async fn enter(&self, ticket: usize, t: u64, till: Moment) -> Vote {
        let place = self.places[ticket].clone();
        let (session, owner) = (place.session, Owner::default());
        let ask = Open { session, ttl: TTL, lock_delay: Duration::ZERO, owner };
        let call = self.store.proposal(&place, &ask, t, till, b"", false);
        let votes = self.store.nodes.tell(PATIENCE * 10, call, votes::vote).await;
        votes.expect("an answer")[0].0
    }

    /// As if the node had said no to a renewal that all others have carried.
    async fn repair(&self, ticket: usize, t: u64, till: Moment) {
        let place = self.places[ticket].clone();
        let (session, owner) = (place.session, Owner::default());
        let ask = Open { session, ttl: TTL, lock_delay: Duration::ZERO, owner };
        let call = self.store.proposal(&place, &ask, t, till, b"", true);
        self.store.nodes.tell(PATIENCE * 10, call, votes::vote).await.expect("an answer");
    }

    async fn leave(&self, ticket: usize, stray: bool) -> bool {
        let place = &self.places[ticket];
        self.store.take_away(place, stray, PATIENCE * 10).await.expect("an answer")
    }

    /// Lets the holder's time run out.
    async fn expire(&self) {
        let mut set = redis::cmd("HSET");
        set.arg(self.store.key(&self.name)).arg("u").arg(1);
        self.store.nodes.connections[0].query::<i64>(&set).await.expect("an answer");
    }

    async fn counter(&self) -> u64 {
        let mut get = redis::cmd("HGET");
        get.arg(self.store.key(&self.name)).arg("c");
        let counter: Option<u64> =
            self.store.nodes.connections[0].query(&get).await.expect("an answer");
        counter.unwrap_or(0)
    }
}

#[tokio::test]
async fn lua_agrees_with_the_model() {
    let Some(mut rig) = Rig::new().await else { return };
    let (mut rng, mut model) = (StdRng::seed_from_u64(7), Node::default());
    let mut votes = [0; 4];
    for step in 0..600 {
        let ticket = rng.random_range(0..3_usize);
        let number = u32::try_from(ticket).expect("small");
        match rng.random_range(0..14) {
            12.. => {
                let t = (model.counter + rng.random_range(0..4)).saturating_sub(2).max(1);
                rig.repair(ticket, t, rig.store.nodes.clock.now() + TTL).await;
                model.repair(number, t);
            }
            0..7 => {
                // Around the counter, and often equal to it.
                let t = (model.counter + rng.random_range(0..4)).saturating_sub(1).max(1);
                let till = rig.store.nodes.clock.now() + TTL;
                let vote = rig.enter(ticket, t, till).await;
                assert_eq!(vote, model.accept(number, t), "step {step}: {ticket} proposes {t}");
                votes[kind(vote)] += 1;
            }
            7..9 => {
                let left = rig.leave(ticket, false).await;
                assert_eq!(left, model.release(number), "step {step}: {ticket} leaves");
            }
            9 => {
                let left = rig.leave(ticket, true).await;
                assert_eq!(left, model.close(number), "step {step}: {ticket} is closed");
            }
            10 if model.ticket.is_some() => {
                rig.expire().await;
                model.ticket = None;
            }
            _ => {
                rig.renew_places();
                // The holder keeps its name, but none of the new tickets is the holder's.
                model.ticket = model.ticket.map(|_| u32::MAX);
                model.closed.clear();
            }
        }
        assert_eq!(rig.counter().await, model.counter, "step {step}");
    }
    assert!(votes.iter().all(|n| *n > 5), "every kind of vote must come up: {votes:?}");
}

fn kind(vote: Vote) -> usize {
    match vote {
        Vote::Yes => 0,
        Vote::No => 1,
        Vote::Low(_) => 2,
        Vote::Closed => 3,
        Vote::Void | Vote::Differs(_) | Vote::Silent => panic!("{vote:?}"),
    }
}

#[tokio::test]
async fn a_node_that_has_started_empty_has_no_vote() {
    let Some(rig) = Rig::new().await else { return };
    let till = rig.store.nodes.clock.now() + TTL;
    let forget = redis::cmd("FLUSHALL");
    rig.store.nodes.connections[0].query::<()>(&forget).await.expect("an answer");
    assert_eq!(rig.enter(0, 1, till).await, Vote::Void);
    assert_eq!(rig.enter(0, 2, till).await, Vote::Void, "also when it is asked again");
    assert_eq!(rig.counter().await, 0);
    let refused = crate::Keeper::builder().ttl(TTL).over(rig.store).expect("a keeper");
    let refused = refused.lock("a").try_now().await.expect_err("no vote, so no lock");
    assert!(refused.to_string().contains("have no vote"), "{refused}");
}

/// Its counters are forgotten with all else; fences go on above the end of its quarantine.
#[tokio::test]
async fn a_node_that_has_forgotten_a_name_accepts_no_fence_from_before_its_quarantine() {
    let Some(rig) = Rig::new().await else { return };
    let now = rig.store.nodes.clock.wall_micros();
    let since = now - micros(rig.store.max_ttl) - 1_000_000;
    let mut set = redis::cmd("SET");
    set.arg(BOOT).arg(format!("{since} run"));
    rig.store.nodes.connections[0].query::<()>(&set).await.expect("an answer");
    let (floor, till) = (now - 1_000_000, rig.store.nodes.clock.now() + TTL);
    assert_eq!(rig.enter(0, floor, till).await, Vote::Low(floor));
    assert_eq!(rig.enter(0, floor + 1, till).await, Vote::Yes);
    assert_eq!(rig.counter().await, floor + 1);
}

/// Between the answer that it is new to us and the end of its quarantine a node may restart, and forget a holder.
#[tokio::test]
async fn a_node_that_has_restarted_since_stays_in_quarantine() {
    let Some(rig) = Rig::new().await else { return };
    let node = &rig.store.nodes.connections[0];
    let (mut set, mut get) = (redis::cmd("SET"), redis::cmd("GET"));
    set.arg(BOOT).arg("17 later");
    get.arg(BOOT);
    node.query::<()>(&set).await.expect("an answer");
    for (run, becomes) in [("earlier", "17 later"), ("later", "0 later ")] {
        waive(node, run).await;
        let boot: String = node.query(&get).await.expect("an answer");
        assert!(boot.starts_with(becomes), "{boot}");
    }
}

async fn waive(node: &Connection, run: &str) {
    let mut waive = Call::new(&WAIVE, &[BOOT]);
    waive.arg(run);
    node.run::<redis::Value>(&waive).await.expect("an answer");
}

/// That a node is new is the clients' conclusion. If it is wrong, fences must not fall back.
#[tokio::test]
async fn a_node_that_was_found_new_accepts_no_fence_from_before_that() {
    let Some(rig) = Rig::new().await else { return };
    let (node, mut set) = (&rig.store.nodes.connections[0], redis::cmd("SET"));
    set.arg(BOOT).arg("17 run");
    node.query::<()>(&set).await.expect("an answer");
    let (before, till) = (rig.store.nodes.clock.wall_micros(), rig.store.nodes.clock.now() + TTL);
    waive(node, "run").await;
    let Vote::Low(floor) = rig.enter(0, before - 30_000_000, till).await else {
        panic!("an older fence was accepted")
    };
    assert!(floor >= before);
    assert_eq!(rig.enter(0, floor, till).await, Vote::Low(floor));
    assert_eq!(rig.enter(0, floor + 1, till).await, Vote::Yes);
}

#[tokio::test]
async fn a_node_votes_only_for_clients_that_say_what_it_was_told() {
    let Some(mut rig) = Rig::new().await else { return };
    let till = rig.store.nodes.clock.now() + TTL;
    assert_eq!(rig.enter(0, 1, till).await, Vote::Yes);
    let told = micros(rig.store.max_ttl);
    rig.store.max_ttl /= 2;
    assert_eq!(rig.enter(0, 1, till).await, Vote::Differs(told));
}
