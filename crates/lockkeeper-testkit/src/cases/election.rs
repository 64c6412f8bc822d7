//! One leader at a time, which every observer knows.

use crate::{
    case::{Case, Verdict, cases},
    world::{World, soon, until_length},
};
use lockkeeper::{Error, Leader, Observer};

pub(crate) fn cases() -> Vec<Case> {
    cases!("election":
        [Fair] candidates_lead_in_the_order_they_came, what_is_proclaimed_is_observed,
            resigning_hands_over, without_candidates_there_is_no_leader, a_waiting_candidate_is_no_leader,
            a_dropped_term_resigns, a_proclamation_after_the_end_is_refused;
    )
}

/// Waits until the observer sees a leader with this value.
async fn until_led_by(observer: &mut Observer, value: &str) -> Leader {
    let wanted = async {
        loop {
            match observer.next().await.expect("a look") {
                Some(leader) if leader.label == value.as_bytes() => return leader,
                _ => {}
            }
        }
    };
    soon("the leader is observed", wanted).await
}

/// I3, I6: each leads in its turn, with a higher number than those before.
async fn candidates_lead_in_the_order_they_came(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let mut term = keeper.election("boss").campaign("0").await?;
    let mut rest = Vec::new();
    for i in 1..4 {
        let campaign = w.keeper().await.election("boss").campaign(i.to_string());
        rest.push(tokio::spawn(async move { campaign.await }));
        until_length(keeper.store(), "boss", i + 1).await;
    }
    for (i, candidate) in rest.into_iter().enumerate() {
        let last = term.fence();
        term.resign().await?;
        term = soon("the candidate's turn", candidate).await??;
        assert!(term.fence() > last);
        let leader = keeper.election("boss").leader().await?.expect("a leader");
        assert_eq!(leader.label, (i + 1).to_string().into_bytes());
        assert_eq!((leader.fence, leader.ticket), (term.fence(), term.guard().ticket()));
    }
    Ok(())
}

/// Observers in other processes see who leads, and each new proclamation.
async fn what_is_proclaimed_is_observed(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let mut observer = w.keeper().await.election("boss").observe();
    assert_eq!(observer.next().await?, None, "there is no leader yet");
    let term = keeper.election("boss").campaign("first").await?;
    let seen = until_led_by(&mut observer, "first").await;
    assert_eq!(seen.fence, term.fence());
    for value in ["second", "third"] {
        term.proclaim(value).await?;
        let seen = until_led_by(&mut observer, value).await;
        assert_eq!(seen.fence, term.fence(), "the same term");
    }
    Ok(())
}

/// A leader that resigned leads no more when that has returned, and the next one does.
async fn resigning_hands_over(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let first = one.election("boss").campaign("one").await?;
    let second = two.election("boss").campaign("two");
    let second = tokio::spawn(async move { second.await });
    until_length(one.store(), "boss", 2).await;
    first.resign().await?;
    let leader = one.election("boss").leader().await?.expect("handed over at once");
    assert_eq!(leader.label, b"two");
    soon("the second's turn", second).await??.resign().await?;
    assert_eq!(one.election("boss").leader().await?, None);
    Ok(())
}

/// No candidate, no leader; and names that are none are errors.
async fn without_candidates_there_is_no_leader(w: World) -> Verdict {
    let keeper = w.keeper().await;
    assert_eq!(keeper.election("boss").leader().await?, None);
    assert_eq!(keeper.election("boss").observe().next().await?, None);
    assert!(matches!(keeper.election("").leader().await, Err(Error::Name(_))));
    assert!(matches!(keeper.election("").observe().next().await, Err(Error::Name(_))));
    Ok(())
}

/// What a candidate wants to proclaim is not taken for what the leader does.
async fn a_waiting_candidate_is_no_leader(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let term = one.election("boss").campaign("one").await?;
    let waiting = two.election("boss").campaign("two");
    let waiting = tokio::spawn(async move { waiting.await });
    until_length(one.store(), "boss", 2).await;
    assert_eq!(two.election("boss").leader().await?.expect("a leader").label, b"one");
    assert!(two.election("boss").campaign("three").try_now().await?.is_none());
    term.resign().await?;
    soon("the candidate's turn", waiting).await??.resign().await?;
    Ok(())
}

/// Dropping the term is resigning, in the background.
async fn a_dropped_term_resigns(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    drop(one.election("boss").campaign("one").await?);
    let term = soon("the next term", two.election("boss").campaign("two").into_future()).await?;
    assert_eq!(two.election("boss").leader().await?.expect("a leader").label, b"two");
    term.resign().await?;
    Ok(())
}

/// A leader that was evicted cannot proclaim: not even before it has heard of it.
async fn a_proclamation_after_the_end_is_refused(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let term = one.election("boss").campaign("one").await?;
    assert!(two.evict("boss", term.guard().ticket()).await?);
    let refused = term.proclaim("still me").await;
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    assert_eq!(two.election("boss").leader().await?, None);
    Ok(())
}
