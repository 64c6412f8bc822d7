//! Several requests at once.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
};

/// What has come in, in the order of the futures, and the futures that are not done.
pub(in crate::store) type Partly<F> = (Vec<Option<<F as Future>::Output>>, Vec<Pin<Box<F>>>);

/// Awaits all futures side by side; their outputs come in the order of the futures.
pub(in crate::store) async fn all<F>(futures: impl IntoIterator<Item = F> + Send) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send,
{
    let futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let (outputs, _) = until(futures, |_| false, std::future::pending()).await;
    outputs.into_iter().flatten().collect()
}

/// Awaits futures side by side until `enough` says so of what has come in, or all of it has, or the
/// time is `over`.
pub(in crate::store) async fn until<F>(
    futures: Vec<Pin<Box<F>>>,
    enough: impl Fn(&[Option<F::Output>]) -> bool + Send + Sync,
    over: impl Future<Output = ()> + Send,
) -> Partly<F>
where
    F: Future<Output: Send> + Send + ?Sized,
{
    let mut futures: Vec<Option<Pin<Box<F>>>> = futures.into_iter().map(Some).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    let mut over = pin!(over);
    poll_fn(|cx| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            step(future, output, cx);
        }
        let done = futures.iter().all(Option::is_none) || enough(&outputs);
        if done { Poll::Ready(()) } else { over.as_mut().poll(cx) }
    })
    .await;
    (outputs, futures.into_iter().flatten().collect())
}

fn step<F: Future + ?Sized>(
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
        let one = |out: &[Option<_>]| out.iter().flatten().count() == 1;
        let (some, rest) =
            until([never.1, soon.1].map(Box::pin).into(), one, std::future::pending()).await;
        assert!(some[0].is_none() && some[1] == Some(Ok(2)));
        never.0.send(1).unwrap();
        assert_eq!(all(rest).await, [Ok(1)], "and goes on if a caller wants it to");
    }

    #[tokio::test]
    async fn when_the_time_is_over_there_is_what_there_is() {
        let never = oneshot::channel::<i32>();
        let (some, rest) = until(vec![Box::pin(never.1)], |_| false, async {}).await;
        assert_eq!((some, rest.len()), (vec![None], 1));
    }
}
