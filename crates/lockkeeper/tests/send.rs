//! Every public future can move between threads, and every handle can be shared by them.

use lockkeeper::{Guard, Guards, Keeper, LossToken, Observer, Sequencer, Term, Watch};
use std::future::IntoFuture;

fn send<T: Send>(_: T) {}
fn handle<T: Send + Sync + 'static>() {}

#[expect(dead_code, reason = "compiling it is the test")]
fn all_futures_are_send(
    keeper: &Keeper,
    guard: Guard,
    guards: Guards,
    term: Term,
    mut observer: Observer,
    mut watch: Watch,
    sequencer: &Sequencer,
) {
    send(Keeper::connect("memory://x"));
    send(keeper.lock("a").into_future());
    send(keeper.lock("a").try_now());
    send(keeper.lock("a").run(|_| async {}));
    send(keeper.lock_all(["a", "b"]).into_future());
    send(keeper.election("a").campaign("me").into_future());
    send(keeper.check(sequencer));
    send(keeper.list(""));
    send(keeper.close());
    send(guard.lost());
    send(guard.jeopardy());
    send(guard.write(b"x".to_vec()));
    send(guard.release());
    send(guards.lost());
    send(guards.release());
    send(term.proclaim("x"));
    send(term.resign());
    send(observer.next());
    send(watch.next());
}

#[test]
fn handles_can_be_shared_by_threads() {
    handle::<Keeper>();
    handle::<Guard>();
    handle::<Guards>();
    handle::<Term>();
    handle::<LossToken>();
    handle::<Observer>();
    handle::<Watch>();
    handle::<Sequencer>();
    handle::<lockkeeper::Acquire>();
    handle::<lockkeeper::Error>();
}
