//! Several requests at once.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

/// Awaits all futures side by side; their outputs come in the order of the futures.
pub(super) async fn all<F>(futures: impl IntoIterator<Item = F> + Send) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send,
{
    until(futures, |_| false).await.into_iter().flatten().collect()
}

/// Awaits futures side by side until `enough` says so of what has come in, or all of it has. The
/// outputs are in the order of the futures; the futures that are not done are dropped.
pub(super) async fn until<F>(
    futures: impl IntoIterator<Item = F> + Send,
    enough: impl Fn(&[Option<F::Output>]) -> bool + Send + Sync,
) -> Vec<Option<F::Output>>
where
    F: Future<Output: Send> + Send,
{
    let mut futures: Vec<Option<Pin<Box<F>>>> =
        futures.into_iter().map(|f| Some(Box::pin(f))).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            step(future, output, cx);
        }
        let done = futures.iter().all(Option::is_none) || enough(&outputs);
        if done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs
}

fn step<F: Future>(
    future: &mut Option<Pin<Box<F>>>,
    output: &mut Option<F::Output>,
    cx: &mut Context<'_>,
) {
    if let Some(running) = future
        && let Poll::Ready(out) = running.as_mut().poll(cx)
    {
        (*future, *output) = (None, Some(out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn outputs_come_in_the_order_of_the_futures() {
        let (late, soon) = (oneshot::channel(), oneshot::channel());
        soon.0.send(2).unwrap();
        let both = tokio::spawn(all([late.1, soon.1]));
        late.0.send(1).unwrap();
        let both: Vec<i32> = both.await.unwrap().into_iter().flatten().collect();
        assert_eq!(both, [1, 2]);
    }

    #[tokio::test]
    async fn what_is_enough_is_not_waited_beyond() {
        let (never, soon) = (oneshot::channel::<i32>(), oneshot::channel());
        soon.0.send(2).unwrap();
        let some = until([never.1, soon.1], |out| out.iter().flatten().count() == 1).await;
        assert!(some[0].is_none() && some[1] == Some(Ok(2)));
        drop(never.0);
    }
}
