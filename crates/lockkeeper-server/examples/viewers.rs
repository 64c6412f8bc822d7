//! What viewers cost: the share of a core that one instance takes with many locks and many viewers.
//!
//! `cargo run --release -p lockkeeper-server --example viewers [-- URL [LOCKS [VIEWERS]]]`

use lockkeeper::{Keeper, TicketId};
use lockkeeper_server::{Address, Listener, Options, Service, serve};
use std::{env, error::Error, fs, net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep},
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const MEASURED: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> Result<()> {
    let mut words = env::args().skip(1);
    let url = words.next().unwrap_or_else(|| "memory://viewers".to_owned());
    let locks: usize = words.next().map_or(Ok(10_000), |word| word.parse())?;
    let viewers: usize = words.next().map_or(Ok(100), |word| word.parse())?;

    let keeper = Keeper::builder().ttl(Duration::from_secs(600)).connect(&url).await?;
    let mut held = Vec::new();
    for at in 0..locks {
        held.push(keeper.lock(format!("jobs/{at}-{}", TicketId::random())).await?);
    }
    let service = Service::new(keeper.store().clone(), Options::default());
    let listener = Listener::bind(&"127.0.0.1:0".parse()?, 0o600).await?;
    let Address::Tcp(address) = listener.address()? else { return Err("no TCP".into()) };
    let serving = tokio::spawn(serve(service.clone(), vec![listener]));
    println!("{url}: {locks} held locks; measured for {MEASURED:?} each");
    share("without viewers, nothing changes", None).await?;
    for _ in 0..viewers {
        tokio::spawn(view(address));
    }
    sleep(Duration::from_secs(5)).await;
    share(&format!("{viewers} viewers, nothing changes"), None).await?;
    share(&format!("{viewers} viewers, 20 changes/s by other clients"), Some(&keeper)).await?;
    service.stop();
    serving.await??;
    Ok(())
}

/// Reads a stream of all events and throws it away.
async fn view(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
    let mut buffer = vec![0; 65_536];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

/// The share of a core that this process takes; `changes` takes and releases ten locks a second meanwhile.
async fn share(what: &str, changes: Option<&Keeper>) -> Result<()> {
    let (began, before) = (Instant::now(), cpu_time()?);
    while began.elapsed() < MEASURED {
        if let Some(keeper) = changes {
            keeper.lock("jobs/changing").await?.release().await?;
        }
        sleep(Duration::from_millis(100)).await;
    }
    let spent = cpu_time()?.saturating_sub(before);
    let share = 100.0 * spent.as_secs_f64() / began.elapsed().as_secs_f64();
    println!("{share:6.2} % of a core: {what}");
    Ok(())
}

/// The processor time of this process, from the kernel's count of ticks of 10 ms.
fn cpu_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse().unwrap_or(0)).sum();
    Ok(Duration::from_millis(ticks * 10))
}
