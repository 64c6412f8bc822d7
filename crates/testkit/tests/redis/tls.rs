//! Redis behind TLS, passwords and rights. That all of the contract works there is for the suite to
//! show, which has such a server among its subjects; here is what happens when something is not right.

use anyhow::{Context as _, Result, ensure};
use lockkeeper::{Error, ErrorKind, Keeper, StoreError};
use servers::{
    REDIS, REDIS_CLUSTER, REDIS_RIGHTS, REDIS_TLS, REDLOCK, Recipe, Running, Unavailable,
};
use std::{error::Error as StdError, time::Duration};
use testkit::{trials::Fixture, world::soon};

/// The password of the recipe, as it is and as it stands in the URL.
const PASSWORD: [&str; 2] = ["open sesame", "open%20sesame"];

testkit::tests! {
    [RedisTls] =>
        a_server_of_another_authority_is_not_trusted,
        a_client_without_a_certificate_is_told_that_one_is_asked_for,
        a_server_that_asks_for_no_certificate_needs_none,
        a_plain_connection_to_a_port_with_tls_ends_in_an_error,
        the_password_can_come_from_a_file,
        a_wrong_password_is_denied_and_not_repeated,
        a_user_without_a_right_is_told_which,
        a_user_without_a_right_within_a_script_is_denied,
        keys_of_others_are_out_of_reach,
        nothing_shows_the_password,
        the_documented_rights_are_those_of_the_tests,
        the_documented_rights_suffice_for_the_other_urls;
}

/// A server that refuses clients without a certificate and a password.
struct Guarded {
    server: Running,
}

/// [`REDIS_TLS`], as a [`Guarded`].
#[derive(Clone, Copy)]
struct RedisTls;

impl Fixture for RedisTls {
    type Ready = Guarded;

    fn variant(&self) -> &'static str {
        REDIS_TLS.variant()
    }

    fn missing(&self) -> Option<Unavailable> {
        REDIS_TLS.missing()
    }

    fn start(&self) -> Result<Guarded> {
        Ok(Guarded { server: REDIS_TLS.start()? })
    }
}

impl Guarded {
    fn url(&self) -> String {
        self.server.url().to_owned()
    }

    /// The URL without these options.
    fn url_without(&self, options: &[&str]) -> String {
        let url = self.url();
        let (start, rest) = url.split_once('?').expect("it has options");
        let is_kept = |pair: &&str| !options.iter().any(|o| pair.starts_with(&format!("{o}=")));
        let kept: Vec<&str> = rest.split('&').filter(is_kept).collect();
        format!("{start}?{}", kept.join("&"))
    }

    async fn admin(&self, command: &str) -> Result<()> {
        admin(self.server.ports()[1], command).await
    }
}

/// A command of the one who looks after the server.
async fn admin(port: u16, command: &str) -> Result<()> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut words = command.split_whitespace();
    let mut cmd = redis::cmd(words.next().context("a command")?);
    Ok(cmd.arg(words.collect::<Vec<_>>()).query_async(&mut connection).await?)
}

/// What the store says when this is tried. It never shows the password.
async fn refusal(url: &str) -> Result<StoreError> {
    match soon("an answer", Keeper::connect(url)).await {
        Ok(keeper) => said(keeper.lock("a").try_now().await.map(|_| ())),
        refused => said(refused.map(|_| ())),
    }
}

fn said(answer: Result<(), Error>) -> Result<StoreError> {
    match answer {
        Err(Error::Store(e)) => {
            shows_no_secret(&e);
            Ok(e)
        }
        other => anyhow::bail!("not refused by the store: {other:?}"),
    }
}

fn shows_no_secret(e: &(dyn StdError + 'static)) {
    for text in [format!("{e}"), format!("{e:?}"), format!("{e:#?}")] {
        let is_secret = |secret: &&str| text.contains(*secret);
        assert!(!PASSWORD.iter().chain(&["wrong horse"]).any(is_secret), "{text}");
    }
    if let Some(below) = e.source() {
        shows_no_secret(below);
    }
}

async fn a_server_of_another_authority_is_not_trusted(g: Guarded) -> Result<()> {
    let stranger = g.url().replace("ca%2Epem", "stranger%2Epem");
    ensure!(stranger != g.url());
    let e = refusal(&stranger).await?;
    ensure!(e.kind == ErrorKind::Misconfigured && e.what.contains("not trusted"), "{e}");
    ensure!(e.what.contains("tls_ca="), "{e}");
    Ok(())
}

async fn a_client_without_a_certificate_is_told_that_one_is_asked_for(g: Guarded) -> Result<()> {
    let e = refusal(&g.url_without(&["tls_cert", "tls_key"])).await?;
    ensure!(e.kind == ErrorKind::Misconfigured && e.what.contains("tls_cert="), "{e}");
    let Err(Error::Url(e)) = Keeper::connect(&g.url_without(&["tls_key"])).await else {
        anyhow::bail!("half a certificate is none");
    };
    ensure!(e.what.contains("belong together"), "{e}");
    Ok(())
}

async fn a_server_that_asks_for_no_certificate_needs_none(g: Guarded) -> Result<()> {
    g.admin("CONFIG SET tls-auth-clients no").await?;
    let keeper = Keeper::connect(&g.url_without(&["tls_cert", "tls_key"])).await?;
    keeper.lock("a").try_now().await?.context("free")?.release().await?;
    Ok(())
}

async fn a_plain_connection_to_a_port_with_tls_ends_in_an_error(g: Guarded) -> Result<()> {
    let e = refusal(&format!("redis://127.0.0.1:{}", g.server.ports()[0])).await?;
    ensure!(
        e.kind == ErrorKind::Unavailable && e.what.contains("cannot connect to 127.0.0.1:"),
        "{e}"
    );
    Ok(())
}

async fn the_password_can_come_from_a_file(g: Guarded) -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), format!("{}\n", PASSWORD[0]))?;
    let url = g.url().replace(&format!(":{}@", PASSWORD[1]), "@");
    ensure!(url != g.url());
    let denied = refusal(&url).await?;
    ensure!(denied.kind == ErrorKind::Denied, "{denied}");
    let keeper = Keeper::connect(&format!("{url}&password_file={}", file.path().display())).await?;
    keeper.lock("a").try_now().await?.context("free")?.release().await?;
    Ok(())
}

async fn a_wrong_password_is_denied_and_not_repeated(g: Guarded) -> Result<()> {
    let e = refusal(&g.url().replace(PASSWORD[1], "wrong%20horse")).await?;
    ensure!(e.kind == ErrorKind::Denied && e.what.contains("password"), "{e}");
    Ok(())
}

async fn a_user_without_a_right_is_told_which(g: Guarded) -> Result<()> {
    for right in ["info", "evalsha"] {
        g.admin(&format!("ACL SETUSER lockkeeper -{right}")).await?;
        let e = refusal(&g.url()).await?;
        ensure!(e.kind == ErrorKind::Denied && e.what.contains(right), "{right}: {e}");
        ensure!(e.what.contains("docs/redis.md"), "{e}");
        g.admin(&format!("ACL SETUSER lockkeeper +{right}")).await?;
    }
    // Without these all works; only less is known about the server.
    g.admin("ACL SETUSER lockkeeper -config|get").await?;
    let keeper = Keeper::connect(&g.url()).await?;
    keeper.lock("a").try_now().await?.context("free")?.release().await?;
    Ok(())
}

async fn a_user_without_a_right_within_a_script_is_denied(g: Guarded) -> Result<()> {
    for right in ["zadd", "hset", "time"] {
        g.admin(&format!("ACL SETUSER lockkeeper -{right}")).await?;
        let e = refusal(&g.url()).await?;
        ensure!(e.kind == ErrorKind::Denied && e.what.contains("docs/redis.md"), "{right}: {e}");
        g.admin(&format!("ACL SETUSER lockkeeper +{right}")).await?;
    }
    let keeper = Keeper::connect(&g.url()).await?;
    keeper.lock("a").try_now().await?.context("nothing stands in the way")?.release().await?;
    Ok(())
}

async fn keys_of_others_are_out_of_reach(g: Guarded) -> Result<()> {
    let e = refusal(&format!("{}&prefix=other", g.url())).await?;
    ensure!(e.kind == ErrorKind::Denied && e.what.contains("key"), "{e}");
    Ok(())
}

async fn nothing_shows_the_password(g: Guarded) -> Result<()> {
    let keeper = Keeper::builder().ttl(Duration::from_secs(2)).connect(&g.url()).await?;
    let guard = keeper.lock("a").try_now().await?.context("free")?;
    let all = format!("{keeper:?} {guard:?} {:?} {:?}", keeper.store(), guard.sequencer());
    ensure!(!PASSWORD.iter().any(|secret| all.contains(secret)), "{all}");
    drop(g);
    match soon("the end", guard.release()).await {
        Ok(()) => anyhow::bail!("the server has gone"),
        Err(e) => shows_no_secret(&e),
    }
    Ok(())
}

async fn the_documented_rights_are_those_of_the_tests(_: Guarded) -> Result<()> {
    let documented = include_str!("../../../../docs/redis.md").split_whitespace();
    let documented: Vec<&str> = documented.collect();
    let unsaid: Vec<&str> =
        REDIS_RIGHTS.split_whitespace().filter(|right| !documented.contains(right)).collect();
    ensure!(unsaid.is_empty(), "docs/redis.md does not name {unsaid:?}");
    Ok(())
}

/// What `docs/redis.md` asks for in addition, by the recipe and the options of its URL.
const ALSO: [(Recipe, &str, &str); 3] = [
    (REDIS_CLUSTER, "+cluster|slots", "prefix=lk"),
    (REDLOCK, "~lockkeeper:redlock:boot +get +set +pexpire +pttl +zremrangebyscore", "max_ttl=20s"),
    (REDIS, "~NAMES* +get +set +pexpire +pttl +zremrangebyscore", "compat=string"),
];

async fn the_documented_rights_suffice_for_the_other_urls(_: Guarded) -> Result<()> {
    for (recipe, more, options) in ALSO {
        let documented = more.replace('|', "\\|");
        ensure!(include_str!("../../../../docs/redis.md").contains(&documented), "{documented}");
        let server = recipe.start()?;
        // The ports of the URL: a cluster has others, for itself.
        for host in server.url().split([',', '/']).filter(|part| part.contains("127.0.0.1:")) {
            let port = host.rsplit_once(':').context("a port")?.1.parse()?;
            let user = format!("ACL SETUSER me on >secret {REDIS_RIGHTS} {more}");
            admin(port, &user).await?;
            if recipe.name == REDLOCK.name {
                admin(port, "SET lockkeeper:redlock:boot 0").await?;
            }
        }
        let url = format!("{}?{options}", server.url().replace("://", "://me:secret@"));
        let (one, two) = (Keeper::connect(&url).await?, Keeper::connect(&url).await?);
        let guard = one.lock("NAMES/a").try_now().await?.context("free")?;
        ensure!(two.lock("NAMES/a").try_now().await?.is_none());
        guard.extend(Duration::from_secs(5)).await?;
        ensure!(two.check(&guard.sequencer()).await? && two.list("NAMES").await?.len() == 1);
        ensure!(two.evict("NAMES/a", guard.ticket()).await?);
        let waiter = tokio::spawn(two.lock("NAMES/a").unfair().into_future());
        soon("a grant", waiter).await??.release().await?;
        one.close().await;
    }
    Ok(())
}
